// Maps of a pixel: one small map for each state, a large one over the picture's own pixels.

import * as api from "./api.js";

const STRONGEST = 12;
const by = (id) => document.getElementById(id);

export class Explorer {
  /** @param getTraceRequest gives {picture, sigma, model, noise} of what is on the screen. */
  constructor(viewer, getTraceRequest, { colors, isBusy, isGray, onError, onStatus }) {
    Object.assign(this, { viewer, getTraceRequest, isBusy, isGray, onError, onStatus });
    this.maps = null;
    this.table = colorTable(colors);
    by("ramp").style.background = `linear-gradient(90deg, ${colors.join(", ")})`;
    viewer.paintOver = (brush) => this.paintOver(brush);
    viewer.addEventListener("pick", ({ detail }) => this.enabled && this.showMaps(detail));
    viewer.addEventListener("hover", ({ detail }) => this.enabled && by("follow").checked && this.showMaps(detail, true));
    viewer.canvas.addEventListener("keydown", (event) => this.key(event));
    by("state").addEventListener("input", () => this.choose(Number(by("state").value) - 1));
    by("play").addEventListener("click", () => this.play(!this.timer));
    for (const id of ["overlay", "outlines"]) by(id).addEventListener("change", () => this.refresh());
    by("channel").addEventListener("change", () => this.maps && this.showMaps(this.maps));
    by("whole").addEventListener("click", () => this.dispatchWhole?.(this.traceRequest()));
  }

  reset() {
    this.request?.abort();
    this.play(false);
    this.maps = null;
    by("maps").hidden = true;
    by("invite").hidden = false;
    this.viewer.draw();
  }

  traceRequest() { return { ...this.getTraceRequest(), channel: Number(by("channel").value) }; }

  /** Asks for the maps of a pixel; while the pointer is followed, one question at a time. */
  async showMaps({ row, column }, following = false) {
    this.target = { row, column };
    if (following && this.asking) return;
    if (following && this.maps?.row === row && this.maps.column === column) return;
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.asking = true;
    const late = setTimeout(() => {
      by("maps").classList.add("waiting");
      by("pixel").textContent = this.isBusy() ? "Waiting for the job that is running …" : "Looking …";
    }, 150);
    by("maps").hidden = false;
    by("invite").hidden = true;
    this.viewer.draw();
    try {
      const maps = await api.maps({ ...this.traceRequest(), row, column }, request.signal);
      this.take(maps, following);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!this.maps) this.reset();
      this.onError(error);
    } finally {
      clearTimeout(late);
      if (this.request === request) {
        this.asking = false;
        by("maps").classList.remove("waiting");
      }
    }
    const { row: r, column: c } = this.target;
    if (following && (r !== row || c !== column)) this.showMaps(this.target, true);
  }

  take(maps, following) {
    const kept = this.maps?.states.length === maps.states.length ? this.state : maps.states.length - 1;
    this.maps = maps;
    this.maps.largest = maps.weights.map((weights) => Math.max(...weights, 1e-12));
    by("maps").hidden = false;
    by("invite").hidden = true;
    by("state").max = maps.states.length;
    by("channels").hidden = maps.color || this.isGray();
    this.drawSmall();
    this.choose(kept);
    this.tellSource();
    if (!following) this.onStatus(`Maps of row ${maps.row}, column ${maps.column} are shown.`);
  }

  choose(state) {
    this.state = state;
    by("state").value = state + 1;
    this.refresh();
  }

  refresh() {
    if (!this.maps) return;
    const { maps, state } = this;
    const weights = maps.weights[state];
    const even = 1 / weights.filter((w) => w > 0).length;
    const sorted = [...weights].sort((a, b) => b - a);
    let half = 0;
    for (let sum = 0; sum < 0.5 && half < sorted.length; half += 1) sum += sorted[half];
    const cells = maps.cell === 1 ? "" : `, cells of ${maps.cell} × ${maps.cell} pixels`;
    by("pixel").textContent = `Row ${maps.row}, column ${maps.column}, its ${maps.window} × ${maps.window} neighbours${cells}`;
    by("state-shown").textContent = `state ${maps.states[state]} of ${maps.states.at(-1)}`;
    by("state").setAttribute("aria-valuetext", `state ${maps.states[state]}`);
    by("quarter").textContent = (maps.largest[state] / 4).toPrecision(2);
    by("top").textContent = maps.largest[state].toPrecision(2);
    by("meaning").textContent =
      `The strongest neighbour counts ${(maps.largest[state] / even).toFixed(0)} times an even share; ` +
      `half of the weight is on ${half} of ${Math.round(1 / even)} ${maps.cell === 1 ? "pixels" : "cells"}.`;
    by("large").setAttribute("aria-label", `${by("pixel").textContent}, state ${maps.states[state]}. ${by("meaning").textContent}`);
    for (const [i, button] of [...by("small").children].entries()) button.setAttribute("aria-pressed", i === state);
    this.drawLarge();
    this.viewer.draw();
  }

  drawSmall() {
    const { maps } = this;
    if (by("small").children.length !== maps.states.length) {
      by("small").replaceChildren(...maps.states.map((number, i) => {
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("aria-label", `State ${number}`);
        button.append(document.createElement("canvas"), Object.assign(document.createElement("span"), { textContent: number }));
        button.addEventListener("click", () => { this.play(false); this.choose(i); });
        return button;
      }));
    }
    for (const [i, button] of [...by("small").children].entries()) {
      const canvas = button.firstChild;
      canvas.width = canvas.height = maps.window;
      canvas.getContext("2d").putImageData(this.colored(i, () => 255), 0, 0);
    }
  }

  /** A map in colours [q, q]; the opacity of a pixel is a function of its place on the scale. */
  colored(state, opacity) {
    const { window: side, weights, largest } = this.maps;
    const image = new ImageData(side, side);
    weights[state].forEach((weight, i) => {
      const place = Math.sqrt(Math.max(0, weight / largest[state])); // else one peak hides the rest
      image.data.set(this.table[Math.round(place * 255)], 4 * i);
      image.data[4 * i + 3] = opacity(place);
    });
    return image;
  }

  /** The neighbours as a picture that is laid over the pixels: the weaker, the less of it. */
  layer() {
    const canvas = new OffscreenCanvas(this.maps.window, this.maps.window);
    canvas.getContext("2d").putImageData(this.colored(this.state, (place) => 70 + 170 * place), 0, 0);
    return canvas;
  }

  strongest() {
    const { window: side, weights } = this.maps;
    const middle = (side * side - 1) / 2;
    return weights[this.state]
      .map((weight, i) => [weight, i])
      .filter(([weight, i]) => weight > 0 && i !== middle)
      .sort((a, b) => b[0] - a[0])
      .slice(0, STRONGEST)
      .map(([, i]) => [Math.floor(i / side), i % side]);
  }

  drawLarge() {
    const canvas = by("large");
    const density = Math.min(2, window.devicePixelRatio || 1);
    const side = Math.round((canvas.clientWidth || 340) * density);
    canvas.width = canvas.height = side;
    const brush = canvas.getContext("2d");
    const { window: span, cell } = this.maps;
    const { top, left } = this.corner();
    brush.imageSmoothingEnabled = false;
    brush.drawImage(this.viewer.before, left, top, span * cell, span * cell, 0, 0, side, side);
    brush.drawImage(this.layer(), 0, 0, side, side);
    this.mark(brush, 0, 0, side / span);
  }

  /** The picture's pixel at which the maps begin: cells lie on a grid, whichever pixel is asked for. */
  corner() {
    const { row, column, window: span, cell } = this.maps;
    const first = (place) => (Math.floor(place / cell) - (span - 1) / 2) * cell;
    return { top: first(row), left: first(column) };
  }

  /** Outlines of the strongest neighbours and of the pixel, the map's corner being at x, y. */
  mark(brush, x, y, size) {
    const middle = (this.maps.window - 1) / 2;
    const frame = (row, column, color, width) => {
      for (const [style, extra] of [["rgb(0 0 0 / 0.7)", 2], [color, 0]]) {
        brush.strokeStyle = style;
        brush.lineWidth = width + extra;
        brush.strokeRect(x + column * size, y + row * size, size, size);
      }
    };
    if (by("outlines").checked) for (const [row, column] of this.strongest()) frame(row, column, "#54e0d2", 1.5);
    frame(middle, middle, "#fff", 2);
  }

  paintOver(brush) {
    const { viewer, maps } = this;
    if (!this.enabled || by("maps").hidden) return;
    if (maps && by("overlay").checked) {
      const { top, left } = this.corner();
      const [x, y] = [viewer.x + left * viewer.scale, viewer.y + top * viewer.scale];
      const side = maps.window * maps.cell * viewer.scale;
      brush.save();
      brush.beginPath();
      brush.rect(viewer.x, viewer.y, viewer.width * viewer.scale, viewer.height * viewer.scale);
      brush.clip();
      brush.imageSmoothingEnabled = false;
      brush.drawImage(this.layer(), x, y, side, side);
      const size = maps.cell * viewer.scale;
      if (size >= 3) this.mark(brush, x, y, size);
      brush.restore();
      brush.strokeStyle = "#fff";
      brush.lineWidth = 1.5;
      brush.strokeRect(x, y, side, side);
    }
    if (this.target && (!maps || this.target.row !== maps.row || this.target.column !== maps.column)) {
      const [x, y] = [viewer.x + (this.target.column + 0.5) * viewer.scale, viewer.y + (this.target.row + 0.5) * viewer.scale];
      brush.beginPath();
      brush.arc(x, y, 9, 0, 7);
      brush.lineWidth = 2;
      brush.strokeStyle = "#fff";
      brush.stroke();
    }
  }

  tellSource() {
    const { halo, seconds_for_whole: seconds } = this.maps;
    by("source").textContent = halo === null
      ? "From the whole picture: exact."
      : `From the neighbourhood and ${halo} pixels around it: up to 5 % of the weight may lie elsewhere for the whole picture.`;
    by("whole").hidden = seconds === null;
    by("whole").textContent = `Trace the whole picture${seconds ? ` (about ${duration(seconds)})` : ""}`;
  }

  play(on) {
    clearInterval(this.timer);
    this.timer = on && this.maps ? setInterval(() => this.choose((this.state + 1) % this.maps.states.length), 650) : 0;
    by("play").setAttribute("aria-pressed", Boolean(this.timer));
    by("play").setAttribute("aria-label", this.timer ? "Stop" : "Play through the states");
  }

  key(event) {
    const step = event.shiftKey ? 10 : 1;
    const moves = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step], Enter: [0, 0] };
    if (!this.enabled || !(event.key in moves) || !this.viewer.before) return;
    event.preventDefault();
    const { width, height } = this.viewer;
    const from = this.target ?? { row: height >> 1, column: width >> 1 };
    const [down, right] = this.maps || event.key === "Enter" ? moves[event.key] : [0, 0];
    const within = (value, length) => Math.min(length - 1, Math.max(0, value));
    this.showMaps({ row: within(from.row + down, height), column: within(from.column + right, width) });
  }
}

function colorTable(stops) {
  const points = stops.map((text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)));
  return Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (points.length - 1);
    const below = Math.min(points.length - 2, Math.floor(place));
    return points[below].map((value, c) => value + (place - below) * (points[below + 1][c] - value));
  });
}

export function duration(seconds) {
  if (seconds < 1) return "a second";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
