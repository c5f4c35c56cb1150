// The picture on a canvas: before and after with a divider or side by side, zoom, pan, and a pixel
// under the pointer.

const LARGEST = 48; // screen pixels for one of the picture
const GRIP = 16; // how near to the divider a drag takes hold of it

export class Viewer extends EventTarget {
  /** Events: "pick" and "hover" with detail {row, column}, "view", "split". */
  constructor(canvas) {
    super();
    this.canvas = canvas;
    this.before = this.after = null;
    this.rival = null; // what stands on the left instead of before
    this.strength = 1; // of after and rival: the rest is before
    this.beside = false; // both in full beside each other, instead of parted by a divider
    this.split = 0.5;
    this.scale = 1; // screen pixels for one of the picture
    this.x = this.y = 0; // of the picture's corner on the screen
    this.paintOver = null; // draws on top, in screen pixels
    this.fitted = true;
    this.pointers = new Map();
    new ResizeObserver(() => this.resized()).observe(canvas);
    for (const name of ["pointerdown", "pointermove", "pointerup", "pointercancel", "wheel"])
      canvas.addEventListener(name, (event) => this[name](event), { passive: false });
    canvas.addEventListener("pointerleave", () => this.dispatchEvent(new CustomEvent("leave")));
  }

  get width() { return this.before?.naturalWidth ?? 1; }
  get height() { return this.before?.naturalHeight ?? 1; }
  /** Screen pixels for one of the result, or of the picture while there is none. */
  get zoomed() { return (this.scale * this.width) / (this.after?.naturalWidth ?? this.width); }

  /** Width of the part of the canvas in which a picture is seen. */
  get room() { return this.canvas.clientWidth / (this.after && this.beside ? 2 : 1); }

  show(before, after = null, rival = null) {
    const same = this.before && before.naturalWidth === this.width && before.naturalHeight === this.height;
    Object.assign(this, { before, after, rival });
    if (same && this.seenIn === this.room) this.changed();
    else this.fit();
  }

  setBeside(on) {
    this.beside = on;
    this.fit();
  }

  // What is seen

  fit() {
    const [w, h] = [this.room, this.canvas.clientHeight];
    this.scale = Math.min(w / this.width, h / this.height, 32);
    this.x = (w - this.width * this.scale) / 2;
    this.y = (h - this.height * this.scale) / 2;
    this.fitted = true;
    this.changed();
  }

  /** Zooms by a factor, the given point of the screen staying where it is. */
  zoom(factor, x = this.room / 2, y = this.canvas.clientHeight / 2) {
    const [w, h] = [this.room, this.canvas.clientHeight];
    const least = Math.min(1, 0.5 * Math.min(w / this.width, h / this.height));
    const scale = Math.min(LARGEST, Math.max(least, this.scale * factor));
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.moved();
  }

  moved() {
    const [w, h] = [this.room, this.canvas.clientHeight];
    const edge = 40; // of the picture that always stays in view
    this.x = Math.min(w - edge, Math.max(edge - this.width * this.scale, this.x));
    this.y = Math.min(h - edge, Math.max(edge - this.height * this.scale, this.y));
    this.fitted = false;
    this.changed();
  }

  resized() {
    if (this.fitted) this.fit();
    else this.changed();
  }

  changed() {
    this.seenIn = this.room;
    this.dispatchEvent(new CustomEvent("view"));
    this.draw();
  }

  /** A place on the screen, as if there were only the left of two pictures. */
  place(event) { return { x: event.offsetX % Math.max(1, this.room), y: event.offsetY }; }

  pixel(x, y) {
    const column = Math.floor((x - this.x) / this.scale);
    const row = Math.floor((y - this.y) / this.scale);
    const inside = row >= 0 && column >= 0 && row < this.height && column < this.width;
    return inside ? { row, column } : null;
  }

  /** Where the divider is on the screen: across the part of the picture that is in view. */
  get divider() {
    const left = Math.max(0, this.x);
    const right = Math.min(this.canvas.clientWidth, this.x + this.width * this.scale);
    return left + this.split * (right - left);
  }

  divide(x) {
    const left = Math.max(0, this.x);
    const right = Math.min(this.canvas.clientWidth, this.x + this.width * this.scale);
    this.split = Math.min(1, Math.max(0, (x - left) / Math.max(1, right - left)));
    this.dispatchEvent(new CustomEvent("split"));
    this.draw();
  }

  // Pointers

  pointerdown(event) {
    if (!this.before || event.button > 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    const at = { x: event.offsetX, y: event.offsetY };
    this.pointers.set(event.pointerId, at);
    this.down = at;
    this.travelled = this.pointers.size > 1;
    this.dividing = this.after && !this.beside && this.pointers.size === 1 && this.onDivider(event.offsetX);
  }

  onDivider(x) { return Math.abs(x - this.divider) < GRIP; }

  pointermove(event) {
    const at = { x: event.offsetX, y: event.offsetY };
    const last = this.pointers.get(event.pointerId);
    if (!last) {
      this.canvas.classList.toggle("dividing", Boolean(this.after) && !this.beside && this.onDivider(at.x));
      const { x, y } = this.place(event);
      const pixel = this.before && this.pixel(x, y);
      if (pixel) this.dispatchEvent(new CustomEvent("hover", { detail: pixel }));
      return;
    }
    if (Math.hypot(at.x - this.down.x, at.y - this.down.y) > 4) this.travelled = true;
    if (this.pointers.size === 2) {
      const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, p]) => p);
      const was = Math.hypot(last.x - other.x, last.y - other.y);
      const is = Math.hypot(at.x - other.x, at.y - other.y);
      this.x += (at.x - last.x) / 2;
      this.y += (at.y - last.y) / 2;
      this.zoom(is / Math.max(1, was), ((at.x + other.x) / 2) % Math.max(1, this.room), (at.y + other.y) / 2);
    } else if (this.dividing) {
      this.divide(at.x);
    } else if (this.travelled) {
      this.canvas.classList.add("grabbing");
      this.x += at.x - last.x;
      this.y += at.y - last.y;
      this.moved();
    }
    this.pointers.set(event.pointerId, at);
  }

  pointerup(event) {
    const clicked = this.pointers.delete(event.pointerId) && !this.travelled;
    this.canvas.classList.remove("grabbing");
    const { x, y } = this.place(event);
    const pixel = this.pixel(x, y);
    if (clicked && pixel) this.dispatchEvent(new CustomEvent("pick", { detail: pixel }));
  }

  pointercancel(event) {
    this.pointers.delete(event.pointerId);
    this.canvas.classList.remove("grabbing");
  }

  wheel(event) {
    // Where the page itself can be scrolled, the wheel scrolls it; with Ctrl it zooms everywhere.
    const root = document.documentElement;
    if (!this.before || (!event.ctrlKey && root.scrollHeight > root.clientHeight + 2)) return;
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 24 : 1;
    const { x, y } = this.place(event);
    this.zoom(Math.exp((-event.deltaY * lines) / 320), x, y);
  }

  // Drawing

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.paint();
    });
  }

  paint() {
    const { canvas } = this;
    const density = window.devicePixelRatio || 1;
    const [w, h] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(w * density) || canvas.height !== Math.round(h * density)) {
      canvas.width = Math.round(w * density);
      canvas.height = Math.round(h * density);
    }
    const brush = canvas.getContext("2d");
    brush.setTransform(density, 0, 0, density, 0, 0);
    brush.clearRect(0, 0, w, h);
    if (!this.before) return;
    for (const pane of this.panes(w)) this.paintPane(brush, pane, h);
    if (this.after && !this.beside) paintDivider(brush, this.divider, h);
  }

  /** Parts of the canvas: the picture in each, from where to where, and how far it is shifted. */
  panes(w) {
    if (!this.after) return [{ image: this.before, from: 0, to: w, shift: 0 }];
    const middle = this.beside ? w / 2 : this.divider;
    const left = { image: this.rival ?? this.before, from: 0, to: middle, shift: 0 };
    return [left, { image: this.after, from: middle, to: w, shift: this.beside ? middle : 0 }];
  }

  paintPane(brush, { image, from, to, shift }, h) {
    brush.save();
    brush.beginPath();
    brush.rect(from + (shift ? 1 : 0), 0, to - from, h);
    brush.clip();
    brush.translate(shift, 0);
    const share = image === this.before || image.naturalWidth !== this.width ? 1 : this.strength;
    // What was there is cleared: so the two parts add up to the mix, also where it is transparent.
    if (share < 1) this.paintImage(brush, this.before, 1 - share);
    brush.globalCompositeOperation = "lighter";
    if (share > 0) this.paintImage(brush, image, share);
    brush.globalCompositeOperation = "source-over";
    brush.globalAlpha = 1;
    this.paintOver?.(brush, this);
    brush.restore();
  }

  paintImage(brush, image, share) {
    const enlarged = (this.scale * this.width) / image.naturalWidth >= 1;
    brush.imageSmoothingEnabled = !enlarged; // pixels are to be seen as such
    brush.imageSmoothingQuality = "high";
    brush.globalAlpha = share;
    brush.drawImage(image, this.x, this.y, this.width * this.scale, this.height * this.scale);
  }
}

function paintDivider(brush, x, h) {
  brush.fillStyle = "rgb(0 0 0 / 0.35)";
  brush.fillRect(x - 2, 0, 4, h);
  brush.fillStyle = "#fff";
  brush.fillRect(x - 1, 0, 2, h);
  brush.beginPath();
  brush.arc(x, h / 2, 17, 0, 7);
  brush.shadowColor = "rgb(0 0 0 / 0.45)";
  brush.shadowBlur = 8;
  brush.fill();
  brush.shadowBlur = 0;
  brush.strokeStyle = "#2a2630";
  brush.lineWidth = 2.2;
  brush.lineCap = brush.lineJoin = "round";
  for (const side of [-1, 1]) {
    brush.beginPath();
    brush.moveTo(x + side * 4, h / 2 - 5);
    brush.lineTo(x + side * 9, h / 2);
    brush.lineTo(x + side * 4, h / 2 + 5);
    brush.stroke();
  }
}
