// The settings: what they are, what they ask the server for, and how long that will take.

import * as api from "./api.js";
import { duration } from "./explorer.js";

const by = (id) => document.getElementById(id);
const QUALITIES = { fast: "Fast", balanced: "Balanced", best: "Best, slow" };

export class Settings extends EventTarget {
  /** Events: "change" after any setting, "task", "noise" if what is shown changes. */
  constructor(catalog) {
    super();
    this.catalog = catalog;
    by("tasks").hidden = catalog.tasks.length < 2;
    for (const task of catalog.tasks) this.addTask(task);
    by("panel").addEventListener("input", () => this.dispatchEvent(new Event("change")));
    by("method").addEventListener("change", () => this.tellMethod());
    for (const id of ["add", "noise"]) by(id).addEventListener("change", () => this.dispatchEvent(new Event("noise")));
    this.choose(catalog.tasks[0]);
  }

  get sigma() { return by("auto").checked ? null : Number(by("sigma").value); }
  get strength() { return this.controls("strength") ? Number(by("strength").value) / 100 : 1; }
  /** Of the method: {quality}, {model} or {method}. */
  get method() { return { ...by("method").selectedOptions[0]?.dataset }; }

  controls(name) { return this.task.controls.includes(name); }
  get hasMaps() { return this.controls("explain") && !this.method.method; }

  addTask(task) {
    const radio = Object.assign(document.createElement("input"), { type: "radio", name: "task", value: task.name, checked: task === this.catalog.tasks[0] });
    const label = Object.assign(document.createElement("label"), { className: "check" });
    label.append(radio, task.label);
    radio.addEventListener("change", () => {
      this.choose(task);
      this.dispatchEvent(new Event("task"));
    });
    by("tasks").append(label);
  }

  choose(task) {
    this.task = task;
    for (const part of document.querySelectorAll("[data-control]")) part.hidden = !this.controls(part.dataset.control);
    by("run").textContent = task.label;
    const models = this.catalog.models.filter((each) => each.task === task.name);
    const own = models.filter((each) => each.description === "your own file");
    const one = models.map((each) => option(each.name, { model: each.name }, each.description));
    by("method").replaceChildren(...this.methods(task, one, own.length < models.length));
    if (own.length) by("method").value = own[0].name;
    this.tellMethod();
  }

  /** Qualities first, then BM3D for noise, then each network by its name. */
  methods(task, one, automatic) {
    const classic = task.name === "denoise" ? [option("BM3D", { method: "bm3d" }, "The classic method")] : [];
    const qualities = this.catalog.qualities.map((quality) => option(QUALITIES[quality], { quality }, "The network that suits the picture"));
    const groups = [group("A network", automatic ? qualities : []), group("Without a network", classic), group("One of the networks", one)];
    if (automatic) qualities[1].selected = true;
    return groups.filter((each) => each.children.length);
  }

  tellMethod() { by("method").title = by("method").selectedOptions[0]?.title ?? ""; }

  /** What a restoration with these settings asks for. */
  request(picture) {
    const { name } = this.task;
    const noise = this.controls("noise") && picture.add ? Number(by("noise").value) : 0;
    const wanted = this.controls("sigma") ? { sigma: this.sigma, noise } : { scale: Number(by("scale").value) };
    return { picture: picture.id, task: name, ...wanted, ...this.method };
  }

  /** Says what the settings mean for a picture. */
  tell(picture, pictures) {
    by("run-all").hidden = pictures.length < 2;
    by("run-all").textContent = `${this.task.label}: all ${pictures.length}`;
    by("sigma").disabled = by("auto").checked;
    const level = this.sigma ?? picture?.sigma ?? 25;
    if (by("auto").checked) by("sigma").value = level;
    by("sigma-shown").textContent = by("auto").checked ? "" : level.toFixed(1);
    by("estimate").textContent = picture ? `${picture.sigma.toFixed(1)} found${picture.correlated ? ", correlated" : ""}` : "";
    by("noise-shown").textContent = by("noise").value;
    by("adding").hidden = !by("add").checked;
    const scale = Number(by("scale").value);
    by("scale-hint").textContent = picture ? `Becomes ${picture.width * scale} × ${picture.height * scale} pixels. The model expects a sharp picture without noise.` : "";
  }

  /** Says how long a picture, and all of them, will take: a little later, once settings rest. */
  tellTime(current, pictures) {
    clearTimeout(this.timer);
    this.asked?.abort();
    by("expected").textContent = "";
    this.timer = setTimeout(() => this.askTime(current, pictures).catch(() => {}), 250); // no estimate, no harm
  }

  async askTime(current, pictures) {
    const { signal } = (this.asked = new AbortController());
    const ask = (picture) => api.estimate(this.request(picture), signal);
    const { seconds, model } = await ask(current);
    if (seconds === null || signal.aborted) return;
    by("expected").textContent = `About ${duration(seconds)} with ${model === "bm3d" ? "BM3D" : model}`;
    if (pictures.length < 2) return;
    const times = await Promise.all(pictures.map(ask));
    if (signal.aborted || times.some((each) => each.seconds === null)) return;
    const total = times.reduce((sum, each) => sum + each.seconds, 0);
    by("expected").textContent += `, all about ${duration(total)}`;
  }
}

function option(text, data, title) {
  const made = Object.assign(document.createElement("option"), { textContent: text, value: text, title });
  Object.assign(made.dataset, data);
  return made;
}

function group(label, options) {
  const made = Object.assign(document.createElement("optgroup"), { label });
  made.append(...options);
  return made;
}
