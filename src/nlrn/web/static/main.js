// The page: a picture comes in, settings, a job with progress, the result.

import * as api from "./api.js";
import { Explorer, duration } from "./explorer.js";
import { Viewer } from "./viewer.js";

const by = (id) => document.getElementById(id);
const viewer = new Viewer(by("view"));
let catalog, explorer;
let picture = null; // facts from the server
let shownNoise = 0; // of what is on the screen
let task = null;
let job = null; // id of the one that runs

function complain(error) {
  by("alert").textContent = error.message ?? error;
  by("alert").hidden = false;
}

const say = (text) => { by("status").textContent = text; };

// A picture comes in

async function choose(file, { clean = false } = {}) {
  by("alert").hidden = true;
  const { bytes, suffixes } = catalog.limits;
  const suffix = file.name.slice(file.name.lastIndexOf(".")).toLowerCase();
  try {
    if (!suffixes.includes(suffix)) throw new Error(`${file.name}: not a kind of picture that is known (${suffixes.join(" ")}).`);
    if (file.size > bytes) throw new Error(`${file.name}: too large, ${Math.round(bytes / 2 ** 20)} MiB are the limit.`);
    say("Sending the picture.");
    document.body.classList.add("sending");
    await abandon();
    picture = await api.upload(file).catch((error) => {
      throw new Error(`${file.name}: ${error.message}`);
    });
    by("add").checked = clean;
    await showPicture();
    describe();
    by("view").focus();
    say(`${picture.name} is here.`);
  } catch (error) {
    complain(error);
  } finally {
    document.body.classList.remove("sending");
  }
}

/** Shows the picture, or its noisy version, without a result. */
async function showPicture() {
  const noise = addedNoise();
  const [image, facts] = await Promise.all([api.loadImage(api.previewOfUpload(picture.id, noise)), api.facts(picture.id, noise)]);
  picture.sigma = facts.sigma;
  picture.correlated = facts.correlated;
  shownNoise = noise;
  by("start").hidden = true;
  by("bench").hidden = by("new").hidden = false;
  viewer.before = null; // of another size, perhaps
  forgetResult();
  viewer.show(image);
  explorer.reset();
  settings();
}

function describe() {
  const depth = { uint8: "8 bit", uint16: "16 bit", float32: "float", float64: "float" }[picture.dtype];
  const color = picture.channels === 1 ? "gray" : "colour";
  by("name").textContent = picture.name;
  by("about").textContent = `${picture.width} × ${picture.height} pixels, ${color}, ${depth}${picture.alpha ? ", with transparency" : ""}`;
  by("channels").hidden = picture.channels === 1;
}

function forgetResult() {
  viewer.after = null;
  viewer.changed();
  say("");
  for (const id of ["outcome", "splitter", "tag-before", "tag-after"]) by(id).hidden = true;
  by("view").setAttribute("aria-label", `${picture.name}, ${shownNoise ? "with noise added" : "as it came"}`);
}

// Settings

const controls = () => task.controls;
const addedNoise = () => (controls().includes("noise") && by("add").checked ? Number(by("noise").value) : 0);
const sigma = () => (by("auto").checked ? null : Number(by("sigma").value));
const model = () => by("model").value || null;
const traceRequest = () => ({ picture: picture.id, sigma: sigma(), model: model(), noise: shownNoise });

function chooseTask(name) {
  task = catalog.tasks.find((each) => each.name === name);
  for (const part of document.querySelectorAll("[data-control]")) part.hidden = !controls().includes(part.dataset.control);
  by("run").textContent = task.label;
  const models = catalog.models.filter((each) => each.task === name);
  const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
  const own = models.filter((each) => each.description === "your own file");
  const automatic = name === "denoise" && own.length < models.length ? [option("", "By the noise level")] : [];
  by("model").replaceChildren(...automatic, ...models.map((each) => option(each.name, each.name)));
  if (own.length) by("model").value = own[0].name;
  tellModel();
  explorer.enabled = controls().includes("explain");
}

function tellModel() {
  const chosen = catalog.models.find((each) => each.name === by("model").value);
  by("model").title = chosen?.description ?? "The model that suits the noise level best";
}

function settings() {
  by("sigma").disabled = by("auto").checked;
  const level = sigma() ?? picture?.sigma ?? 25;
  if (by("auto").checked) by("sigma").value = level;
  by("sigma-shown").textContent = by("auto").checked ? "" : level.toFixed(1);
  by("estimate").textContent = picture ? `${picture.sigma.toFixed(1)} found${picture.correlated ? ", correlated" : ""}` : "";
  by("strength-shown").textContent = `${by("strength").value} %`;
  by("noise-shown").textContent = by("noise").value;
  by("adding").hidden = !by("add").checked;
  const scale = Number(by("scale").value);
  by("scale-hint").textContent = picture ? `Becomes ${picture.width * scale} × ${picture.height * scale} pixels. The model expects a sharp picture without noise.` : "";
}

// A job

async function run() {
  by("alert").hidden = true;
  const request = {
    picture: picture.id, task: task.name, sigma: sigma(), strength: Number(by("strength").value) / 100,
    scale: Number(by("scale").value), model: model(), noise: addedNoise(),
  };
  forgetResult();
  viewer.draw();
  const facts = await work(() => api.startRestoration(request), task.label);
  if (facts?.state !== "done") return;
  const after = await api.loadImage(api.previewOfJob(facts.id)).catch(complain);
  if (after) showResult(facts, after);
}

/** Starts a job and shows its progress; gives its last facts, or nothing if it failed. */
async function work(start, label) {
  by("run").disabled = by("whole").disabled = true;
  by("cancel").disabled = false;
  by("bar").removeAttribute("value");
  by("doing").textContent = `${label} …`;
  by("progress").hidden = false;
  try {
    job = (await start()).id;
    say(`${label} has begun.`);
    const facts = await api.follow(job, (now) => showProgress(now, label));
    if (facts.state === "failed") throw new Error(facts.error);
    if (facts.state === "cancelled") say("Cancelled.");
    return facts;
  } catch (error) {
    complain(error);
    return null;
  } finally {
    job = null;
    by("progress").hidden = true;
    by("run").disabled = by("whole").disabled = false;
  }
}

function showProgress(facts, label) {
  if (by("cancel").disabled) return;
  if (facts.state === "waiting") {
    by("doing").textContent = "Waiting for other pictures …";
  } else if (facts.done) {
    const share = facts.done / facts.total;
    const left = facts.seconds_left > 0.5 ? `, about ${duration(facts.seconds_left)} left` : "";
    by("doing").textContent = `${label}: ${Math.round(100 * share)} %${left}`;
    by("bar").value = share;
  }
}

async function abandon() {
  if (job) await api.cancel(job).catch(() => {});
}

function showResult(facts, after) {
  viewer.show(viewer.before, after);
  slide(0.5);
  for (const id of ["outcome", "splitter", "tag-before", "tag-after"]) by(id).hidden = false;
  by("tag-before").textContent = shownNoise ? "noisy" : "before";
  by("tag-after").textContent = task.name === "denoise" ? "restored" : "enlarged";
  const level = facts.sigma === null ? "" : `, noise level ${facts.sigma.toFixed(1)}`;
  by("took").textContent = `${facts.seconds.toFixed(1)} s with ${facts.model}${level}`;
  by("warnings").replaceChildren(...facts.warnings.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  by("download").href = api.resultOfJob(facts.id);
  by("download").download = facts.filename;
  by("download").textContent = `Download ${facts.filename.slice(facts.filename.lastIndexOf(".") + 1).toUpperCase()}`;
  showScores(facts.scores);
  by("panel").scrollTop = by("panel").scrollHeight; // where it scrolls by itself
  by("view").setAttribute("aria-label", `${picture.name}: before on the left of the divider, after on its right`);
  say(`Done in ${facts.seconds.toFixed(0)} seconds. The result can be downloaded.`);
}

function showScores(scores) {
  by("scores").hidden = !scores;
  if (!scores) return;
  const rows = by("scores").tBodies[0].rows;
  for (const [row, { psnr, ssim }] of [[rows[0], scores.noisy], [rows[1], scores.restored]]) {
    row.cells[1].textContent = psnr === null ? "–" : `${psnr.toFixed(2)} dB`;
    row.cells[2].textContent = ssim === null ? "–" : ssim.toFixed(4);
  }
}

/** Moves the divider; from the right edge at first, so that it is noticed. */
function slide(to) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const start = performance.now();
  const step = (now) => {
    const share = still ? 1 : Math.min(1, Math.max(0, now - start) / 600);
    viewer.split = 1 - (1 - to) * (1 - (1 - share) ** 3);
    by("split").value = 1000 * viewer.split;
    viewer.draw();
    if (share < 1) requestAnimationFrame(step);
  };
  step(start);
}

// Wiring

function wire() {
  by("file").addEventListener("change", ({ target }) => {
    if (target.files[0]) choose(target.files[0]);
    target.value = "";
  });
  addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files][0];
    if (file) choose(file);
  });
  let depth = 0; // of elements that a dragged file is over
  const dragged = (event, change) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    depth = change === null ? 0 : depth + change;
    by("dropping").hidden = depth <= 0;
  };
  addEventListener("dragenter", (event) => dragged(event, 1));
  addEventListener("dragleave", (event) => dragged(event, -1));
  addEventListener("dragover", (event) => dragged(event, 0));
  addEventListener("drop", (event) => {
    dragged(event, null);
    if (event.dataTransfer?.files[0]) choose(event.dataTransfer.files[0]);
  });
  for (const button of document.querySelectorAll("[data-example]")) {
    button.addEventListener("click", async () => {
      const name = `${button.dataset.example}.png`;
      const blob = await (await fetch(`examples/${name}`)).blob();
      choose(new File([blob], name), { clean: true });
    });
  }
  by("new").addEventListener("click", () => by("file").click());
  by("panel").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  by("panel").addEventListener("input", settings);
  by("model").addEventListener("change", tellModel);
  for (const id of ["sigma", "auto", "model"])
    by(id).addEventListener("change", () => explorer.maps && explorer.showMaps(explorer.maps));
  for (const id of ["add", "noise"]) by(id).addEventListener("change", () => showPicture().catch(complain));
  by("cancel").addEventListener("click", () => {
    by("cancel").disabled = true;
    by("doing").textContent = "Stopping …";
    if (job) api.cancel(job).catch(complain);
  });
  by("split").addEventListener("input", () => {
    viewer.split = Number(by("split").value) / 1000;
    viewer.draw();
  });
  viewer.addEventListener("split", () => { by("split").value = 1000 * viewer.split; });
  viewer.addEventListener("view", () => { by("zoom-shown").textContent = `${Math.round(100 * viewer.zoomed)} %`; });
  const zooms = { in: () => viewer.zoom(1.5), out: () => viewer.zoom(1 / 1.5), fit: () => viewer.fit(), one: () => viewer.zoom(1 / viewer.zoomed) };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", zooms[button.dataset.zoom]);
  by("view").addEventListener("keydown", ({ key }) => ({ "+": zooms.in, "=": zooms.in, "-": zooms.out, 0: zooms.fit })[key]?.());
  addEventListener("pagehide", abandon);
  wireTheme();
}

function wireTheme() {
  const themes = ["auto", "light", "dark"];
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    by("theme").textContent = `Theme: ${theme}`;
  };
  let theme = themes.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto";
  set(theme);
  by("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    localStorage.setItem("theme", theme);
    set(theme);
  });
}

async function begin() {
  wire();
  catalog = await api.catalog();
  explorer = new Explorer(viewer, traceRequest, {
    colors: catalog.colours, isBusy: () => job, onError: complain, onStatus: say,
  });
  explorer.dispatchWhole = async (traced) => {
    const facts = await work(() => api.startTrace(traced), "Tracing");
    if (facts?.state === "done") explorer.showMaps(explorer.maps);
  };
  by("file").accept = catalog.limits.suffixes.join(",");
  by("limits").textContent = `${catalog.limits.suffixes.map((s) => s.slice(1)).join(", ")}; up to ${Math.round(catalog.limits.bytes / 2 ** 20)} MiB`;
  by("tasks").hidden = catalog.tasks.length < 2;
  for (const each of catalog.tasks) {
    const radio = Object.assign(document.createElement("input"), { type: "radio", name: "task", value: each.name, checked: each === catalog.tasks[0] });
    const label = Object.assign(document.createElement("label"), { className: "check" });
    label.append(radio, each.label);
    radio.addEventListener("change", () => {
      chooseTask(each.name);
      showPicture().catch(complain);
    });
    by("tasks").append(label);
  }
  chooseTask(catalog.tasks[0].name);
  document.documentElement.dataset.ready = "yes";
}

begin().catch(complain);
