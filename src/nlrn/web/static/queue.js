// The pictures and what is to be done with them: one job at a time, in the order of the clicks.

import * as api from "./api.js";

const by = (id) => document.getElementById(id);

export class Queue extends EventTarget {
  /** Events: "change" when a job begins, goes on or ends. */
  constructor() {
    super();
    this.pictures = [];
    this.waiting = [];
    this.running = null;
  }

  changed() { this.dispatchEvent(new Event("change")); }

  /** What is done or waits to be done with a picture, if anything. */
  workOn(picture) { return [this.running, ...this.waiting].find((work) => work?.picture === picture) ?? null; }

  /** Queues work; gives the job's last facts, or nothing if it failed or was cancelled. */
  add(picture, label, start) {
    picture.failed = false;
    return new Promise((resolve, reject) => {
      this.waiting.push({ picture, label, start, resolve, reject, facts: null, stopping: false });
      this.changed();
      if (!this.running) this.drain();
    });
  }

  async drain() {
    while ((this.running = this.waiting.shift())) {
      const work = this.running;
      this.changed();
      try {
        work.resolve(await this.run(work));
      } catch (error) {
        work.picture.failed = true;
        work.reject(error);
      }
    }
    this.running = null;
    this.changed();
  }

  async run(work) {
    work.facts = await work.start();
    if (work.stopping) await api.cancel(work.facts.id);
    const facts = await api.follow(work.facts.id, (now) => {
      work.facts = now;
      this.changed();
    });
    if (facts.state === "failed") throw new Error(facts.error);
    return facts.state === "done" ? facts : null;
  }

  /** Stops what is done with a picture, or takes it out of the queue. */
  async cancel(picture) {
    for (const work of this.waiting.filter((each) => each.picture === picture)) work.resolve(null);
    this.waiting = this.waiting.filter((each) => each.picture !== picture);
    const work = this.running;
    if (work?.picture === picture) {
      work.stopping = true;
      if (work.facts) await api.cancel(work.facts.id);
    }
    this.changed();
  }

  async remove(picture) {
    this.pictures = this.pictures.filter((each) => each !== picture);
    await this.cancel(picture).catch(() => {});
    await api.forget(picture.id).catch(() => {}); // it may be gone already
  }

  /** A list of all pictures, for there to be one to go to. */
  list(current, { onShow, onRemove }) {
    by("pictures").hidden = this.pictures.length < 2;
    const items = this.pictures.map((picture, i) => {
      const item = by("pictures").children[i] ?? newItem();
      const [show, remove] = item.children;
      show.firstChild.textContent = picture.name;
      show.lastChild.textContent = this.stateOf(picture);
      show.setAttribute("aria-current", picture === current);
      show.onclick = () => onShow(picture);
      remove.setAttribute("aria-label", `Remove ${picture.name}`);
      remove.onclick = () => onRemove(picture);
      return item;
    });
    for (const item of [...by("pictures").children].slice(items.length)) item.remove();
    by("pictures").append(...items.slice(by("pictures").children.length)); // others keep the focus
  }

  stateOf(picture) {
    const work = this.workOn(picture);
    if (work) return work.facts?.total ? `${Math.round((100 * work.facts.done) / work.facts.total)} %` : work === this.running ? "…" : "waiting";
    if (picture.failed) return "failed";
    return picture.results.size ? "done" : "";
  }
}

function newItem() {
  const item = document.createElement("li");
  const button = (className) => Object.assign(document.createElement("button"), { type: "button", className });
  const show = button("quiet");
  show.append(document.createElement("span"), document.createElement("small"));
  const remove = button("quiet remove");
  remove.textContent = "×";
  item.append(show, remove);
  return item;
}
