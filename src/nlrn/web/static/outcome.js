// The result of a picture: what was done, scores, strength, download, and BM3D beside it.

import * as api from "./api.js";

const by = (id) => document.getElementById(id);
const SHOWN = ["outcome", "tag-before", "tag-after", "beside"];

export class Outcome {
  constructor(viewer, settings, onError) {
    Object.assign(this, { viewer, settings, onError });
    this.result = this.rival = null;
    by("format").addEventListener("change", () => {
      this.format = by("format").value;
      this.link();
    });
    by("strength").addEventListener("input", () => this.follow());
    by("strength").addEventListener("change", () => this.score());
    by("beside").addEventListener("click", () => this.setBeside(!viewer.beside));
    by("left").addEventListener("change", () => this.draw());
    by("split").addEventListener("input", () => {
      viewer.split = Number(by("split").value) / 1000;
      viewer.draw();
    });
    viewer.addEventListener("split", () => { by("split").value = 1000 * viewer.split; });
  }

  /** Shows a picture with its result, if there is one, and that of BM3D, if there is one. */
  show(picture, shown, result, rival) {
    Object.assign(this, { picture, shown, result, rival: result ? rival : null });
    for (const id of SHOWN) by(id).hidden = !result;
    by("left-of").hidden = !this.rival;
    by("mix").hidden = !result || !this.settings.controls("strength");
    if (!this.rival) by("left").value = "before";
    if (!result) this.viewer.beside = false;
    by("beside").setAttribute("aria-pressed", this.viewer.beside);
    by("splitter").hidden = !result || this.viewer.beside;
    this.draw();
    if (!result) return;
    this.tell();
    this.score();
    this.link();
  }

  draw() {
    const { viewer, result, rival } = this;
    const left = rival && by("left").value === "rival" ? rival.image : null;
    viewer.strength = this.settings.strength;
    viewer.show(this.shown.image, result?.image ?? null, left);
    by("tag-before").textContent = left ? "BM3D" : result?.request.noise ? "noisy" : "before";
    by("tag-after").textContent = result?.request.task === "upscale" ? "enlarged" : "restored";
    [by("splitter").firstElementChild.textContent, by("splitter").lastElementChild.textContent] =
      [by("tag-before").textContent, by("tag-after").textContent];
    const sides = `: ${by("tag-before").textContent} on the left, ${by("tag-after").textContent} on the right`;
    const what = result ? sides : this.shown.noise ? ", with noise added" : ", as it came";
    by("view").setAttribute("aria-label", this.picture.name + what);
  }

  tell() {
    const { facts, request } = this.result;
    const level = facts.sigma === null ? "" : `, noise level ${facts.sigma.toFixed(1)}`;
    const model = request.method === "bm3d" ? "BM3D" : facts.model;
    by("took").textContent = `${facts.seconds.toFixed(1)} s with ${model}${level}`;
    by("warnings").replaceChildren(...facts.warnings.map((text) => element("li", text)));
    const formats = this.picture.formats.map((suffix) => Object.assign(element("option", suffix.slice(1).toUpperCase()), { value: suffix.slice(1) }));
    by("format").replaceChildren(...formats);
    if (this.picture.formats.includes(`.${this.format}`)) by("format").value = this.format;
    by("compare").hidden = request.task !== "denoise" || request.method === "bm3d" || Boolean(this.rival);
  }

  /** The file at the present strength, in the chosen format. */
  link() {
    if (!this.result) return;
    const { id, filename } = this.result.facts;
    const format = by("format").value;
    by("download").href = api.resultOfJob(id, this.settings.strength, format);
    by("download").download = `${filename.slice(0, filename.lastIndexOf("."))}.${format}`;
    by("download").textContent = `Download ${format.toUpperCase()}`;
  }

  /** Follows the strength: the picture at once, its scores when the slider is let go. */
  follow() {
    by("strength-shown").textContent = `${by("strength").value} %`;
    this.viewer.strength = this.settings.strength;
    this.viewer.draw();
    this.link();
    for (const line of [...by("scores").tBodies[0].rows].slice(1)) for (const cell of [...line.cells].slice(1)) cell.textContent = "…";
  }

  async score() {
    const { result, rival } = this;
    by("scores").hidden = !result?.facts.scores;
    if (!result?.facts.scores) return;
    const { strength } = this.settings;
    const scores = async (of) => (strength === 1 ? of.facts.scores : (await api.scoresOfJob(of.facts.id, strength)).scores);
    try {
      const own = await scores(result);
      const rows = [row("noisy", own.noisy), row("restored", own.restored)];
      if (rival?.facts.scores) rows.splice(1, 0, row("BM3D", (await scores(rival)).restored));
      if (result === this.result && rival === this.rival) by("scores").tBodies[0].replaceChildren(...rows);
    } catch (error) {
      this.onError(error);
    }
  }

  setBeside(on) {
    this.viewer.setBeside(on);
    by("beside").setAttribute("aria-pressed", on);
    by("splitter").hidden = on;
  }

  /** BM3D to the left, both in full. */
  compare() {
    by("left").value = "rival";
    this.setBeside(true);
    this.draw();
  }

  /** Moves the divider; from the right edge at first, so that it is noticed. */
  slide(to) {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const start = performance.now();
    const step = (now) => {
      const share = still ? 1 : Math.min(1, Math.max(0, now - start) / 600);
      this.viewer.split = 1 - (1 - to) * (1 - (1 - share) ** 3);
      by("split").value = 1000 * this.viewer.split;
      this.viewer.draw();
      if (share < 1) requestAnimationFrame(step);
    };
    step(start);
  }
}

const element = (name, textContent) => Object.assign(document.createElement(name), { textContent });

function row(name, { psnr, ssim }) {
  const made = document.createElement("tr");
  const head = Object.assign(element("th", name), { scope: "row" });
  made.append(head, element("td", psnr === null ? "–" : `${psnr.toFixed(2)} dB`), element("td", ssim === null ? "–" : ssim.toFixed(4)));
  return made;
}
