// The page: pictures come in, settings, jobs with progress, results.

import * as api from "./api.js";
import { Explorer, duration } from "./explorer.js";
import { filesOf, wireFiles } from "./files.js";
import { Outcome } from "./outcome.js";
import { Queue } from "./queue.js";
import { Settings } from "./settings.js";
import { Viewer } from "./viewer.js";

const by = (id) => document.getElementById(id);
const viewer = new Viewer(by("view"));
const queue = new Queue();
let catalog, explorer, settings, outcome;
let picture = null; // the one on the screen: facts from the server, `add` (noise), `results`
let shown = { noise: 0, image: null }; // what is on the screen of it
let turns = 0; // of showing: what was asked for last is shown

function complain(error) {
  by("alert").textContent = error.message ?? error;
  by("alert").hidden = false;
}

const say = (text) => { by("status").textContent = text; };

// Pictures come in

async function take(files, { clean = false } = {}) {
  by("alert").hidden = true;
  const problems = [];
  let first = null;
  document.body.classList.add("sending");
  say(files.length === 1 ? "Sending the picture." : `Sending ${files.length} pictures.`);
  for (const file of files.slice(0, catalog.limits.pictures)) {
    try {
      const added = await send(file, clean);
      if (first) recount();
      else await show(added).catch((error) => queue.remove(added).then(() => { throw error; }));
      first ??= added;
    } catch (error) {
      problems.push(error.message);
    }
  }
  document.body.classList.remove("sending");
  if (files.length > catalog.limits.pictures) problems.push(`Only ${catalog.limits.pictures} pictures can be here at a time.`);
  if (problems.length) complain(problems.join(" "));
  if (!first) return;
  by("view").focus();
  say(files.length === 1 ? `${first.name} is here.` : `${queue.pictures.length} pictures are here.`);
}

async function send(file, clean) {
  const { bytes, suffixes, pictures } = catalog.limits;
  const suffix = file.name.slice(file.name.lastIndexOf(".")).toLowerCase();
  if (!suffixes.includes(suffix)) throw new Error(`${file.name}: not a kind of picture that is known (${suffixes.join(" ")}).`);
  if (file.size > bytes) throw new Error(`${file.name}: too large, ${Math.round(bytes / 2 ** 20)} MiB are the limit.`);
  const facts = await api.upload(file).catch((error) => {
    throw new Error(`${file.name}: ${error.message}`);
  });
  while (queue.pictures.length >= pictures) await queue.remove(queue.pictures[0]);
  const added = { ...facts, add: clean, results: new Map() };
  queue.pictures.push(added);
  return added;
}

/** Shows a picture, or its noisy version, with the result that the task has for it. */
async function show(next = picture) {
  const turn = ++turns;
  const { noise = 0 } = settings.request(next);
  const kept = next === picture && noise === shown.noise ? shown.image : null;
  const result = resultOf(next, settings.task.name, noise);
  const rival = settings.controls("compare") && result ? rivalOf(next, result) : null;
  const previews = [result, rival].filter(Boolean).map(async (each) => {
    each.image ??= await api.loadImage(api.previewOfJob(each.facts.id)).catch(() => null); // gone by now
  });
  const [image, facts] = await Promise.all([kept ?? api.loadImage(api.previewOfUpload(next.id, noise)), api.facts(next.id, noise), ...previews]);
  if (turn !== turns) return;
  // From here on nothing fails: the picture changes together with what is said about it.
  if (!kept) explorer.reset();
  if (next !== picture) {
    viewer.before = null; // of another size, perhaps
    for (const each of picture?.results.values() ?? []) each.image = null;
    by("add").checked = next.add;
    by("panel").scrollTop = 0;
  }
  picture = next;
  picture.sigma = facts.sigma;
  picture.correlated = facts.correlated;
  shown = { noise, image };
  by("start").hidden = true;
  by("bench").hidden = by("new").hidden = false;
  describe();
  outcome.show(picture, shown, result?.image ? result : null, rival?.image ? rival : null);
  say("");
  recount();
}

function describe() {
  const depth = { uint8: "8 bit", uint16: "16 bit", float32: "float", float64: "float" }[picture.dtype];
  const color = picture.channels === 1 ? "gray" : "colour";
  by("name").textContent = picture.name;
  by("about").textContent = `${picture.width} × ${picture.height} pixels, ${color}, ${depth}${picture.alpha ? ", with transparency" : ""}`;
  by("notes").textContent = picture.notes.join("; ");
}

/** After the pictures have become more or fewer. */
function recount() {
  refresh();
  settings.tellTime(picture, queue.pictures);
}

async function remove(gone) {
  const place = queue.pictures.indexOf(gone);
  await queue.remove(gone);
  const next = queue.pictures[place] ?? queue.pictures[place - 1];
  if (gone === picture && next) await show(next);
  else recount();
  say(`${gone.name} is removed.`);
}

// Results

const resultOf = (of, task, noise) => {
  const result = of.results.get(task);
  return result && (result.request.noise ?? 0) === noise ? result : null;
};

/** What BM3D made of the same picture and noise level. */
const rivalOf = (of, { facts, request }) => {
  const rival = of.results.get("bm3d");
  const same = rival && request.method !== "bm3d" && rival.facts.sigma === facts.sigma && rival.request.noise === request.noise;
  return same ? rival : null;
};

/** Where the picture is not beside the settings: progress and result are to be seen. */
function bringPicture() {
  if (!matchMedia("(max-width: 760px)").matches) return;
  const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "instant" : "smooth";
  by("stage").scrollIntoView({ behavior });
}

async function run(of) {
  by("alert").hidden = true;
  bringPicture();
  const request = settings.request(of);
  const facts = await work(of, () => api.startRestoration(request), settings.task.label);
  if (!facts) return;
  of.results.set(request.task, { facts, request });
  await display(of, request.task, facts);
}

async function display(of, task, facts) {
  refresh();
  if (of !== picture || task !== settings.task.name) return;
  await show();
  if (viewer.after && !viewer.beside) outcome.slide(0.5);
  by("panel").scrollTop = by("panel").scrollHeight; // where it scrolls by itself
  say(`Done in ${facts.seconds.toFixed(0)} seconds. The result can be downloaded.`);
}

async function compare() {
  bringPicture();
  const [of, { facts: done, request: asked }] = [picture, outcome.result];
  const request = { picture: of.id, task: "denoise", method: "bm3d", sigma: done.sigma, noise: asked.noise };
  const facts = await work(of, () => api.startRestoration(request), "BM3D");
  if (!facts) return;
  of.results.set("bm3d", { facts, request });
  await display(of, "denoise", facts);
  if (of === picture && outcome.rival) outcome.compare();
}

/** Queues a job; gives its last facts, or nothing if it came to nothing. */
async function work(of, start, label) {
  try {
    const facts = await queue.add(of, label, start);
    if (!facts) say("Cancelled.");
    return facts;
  } catch (error) {
    complain(queue.pictures.length > 1 ? new Error(`${of.name}: ${error.message}`) : error);
    return null;
  }
}

// What the page says

function refresh() {
  queue.list(picture, { onShow: (each) => show(each).catch(complain), onRemove: (each) => remove(each).catch(complain) });
  showProgress(picture && queue.workOn(picture));
  settings.tell(picture, queue.pictures);
  explorer.enabled = settings.hasMaps;
  if (!explorer.enabled && explorer.maps) explorer.reset();
  by("no-maps").hidden = settings.hasMaps;
  by("invite").hidden = !settings.hasMaps || !by("maps").hidden;
  const { result } = outcome;
  by("stale").hidden = !picture || !result || sameText(settings.request(picture), result.request);
}

const sameText = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function showProgress(job) {
  by("progress").hidden = !job;
  by("run").disabled = by("whole").disabled = Boolean(job);
  by("run-all").disabled = queue.pictures.every((each) => queue.workOn(each));
  if (!job) return;
  by("cancel").disabled = job.stopping;
  const { facts } = job;
  if (job.stopping) {
    by("doing").textContent = "Stopping …";
  } else if (facts?.done) {
    const share = facts.done / facts.total;
    const left = facts.seconds_left > 0.5 ? `, about ${duration(facts.seconds_left)} left` : "";
    by("doing").textContent = `${job.label}: ${Math.round(100 * share)} %${left}`;
    by("bar").value = share;
  } else {
    by("doing").textContent = job !== queue.running || facts?.state === "waiting" ? "Waiting for other pictures …" : `${job.label} …`;
    by("bar").removeAttribute("value");
  }
}

// Wiring

function wire() {
  wireFiles(take, complain);
  for (const button of document.querySelectorAll("[data-example]")) {
    button.addEventListener("click", async () => {
      const name = `${button.dataset.example}.png`;
      take(filesOf([await (await fetch(`examples/${name}`)).blob()], name), { clean: true });
    });
  }
  by("panel").addEventListener("submit", (event) => {
    event.preventDefault();
    run(picture).catch(complain);
  });
  by("run-all").addEventListener("click", () => {
    for (const each of queue.pictures) if (!queue.workOn(each)) run(each).catch(complain);
  });
  by("compare").addEventListener("click", () => compare().catch(complain));
  by("cancel").addEventListener("click", () => queue.cancel(picture).catch(complain));
  viewer.addEventListener("view", () => { by("zoom-shown").textContent = `${Math.round(100 * viewer.zoomed)} %`; });
  const zooms = { in: () => viewer.zoom(1.5), out: () => viewer.zoom(1 / 1.5), fit: () => viewer.fit(), one: () => viewer.zoom(1 / viewer.zoomed) };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", zooms[button.dataset.zoom]);
  by("view").addEventListener("keydown", ({ key }) => ({ "+": zooms.in, "=": zooms.in, "-": zooms.out, 0: zooms.fit })[key]?.());
  addEventListener("pagehide", () => { if (queue.running?.facts) api.cancel(queue.running.facts.id).catch(() => {}); });
  queue.addEventListener("change", refresh);
  wireTheme();
}

function wireSettings() {
  settings.addEventListener("change", () => {
    if (picture) recount();
  });
  settings.addEventListener("task", () => picture && show().catch(complain));
  settings.addEventListener("noise", () => {
    if (!picture) return;
    picture.add = by("add").checked;
    show().catch(complain);
  });
  for (const id of ["sigma", "auto", "method"])
    by(id).addEventListener("change", () => explorer.enabled && explorer.maps && explorer.showMaps(explorer.maps));
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

/** What a click on a pixel asks for. */
function traceRequest() {
  const { picture: id, sigma, noise, quality, model } = settings.request(picture);
  return { picture: id, sigma, noise, quality, model };
}

async function begin() {
  wire();
  catalog = await api.catalog();
  settings = new Settings(catalog);
  outcome = new Outcome(viewer, settings, complain);
  explorer = new Explorer(viewer, traceRequest, {
    colors: catalog.colours, isBusy: () => queue.running, isGray: () => picture.channels === 1, onError: complain, onStatus: say,
  });
  explorer.enabled = settings.hasMaps;
  explorer.dispatchWhole = async (traced) => {
    const facts = await work(picture, () => api.startTrace(traced), "Tracing");
    if (facts && explorer.maps) explorer.showMaps(explorer.maps);
  };
  wireSettings();
  by("file").accept = catalog.limits.suffixes.join(",");
  by("limits").textContent = `${catalog.limits.suffixes.map((s) => s.slice(1)).join(", ")}; up to ${Math.round(catalog.limits.bytes / 2 ** 20)} MiB`;
  document.documentElement.dataset.ready = "yes";
}

begin().catch(complain);
