// Zoom and pan, shared by panels that stand side by side.

const MOST = 40;

export class Viewport {
  #views = [];

  constructor() {
    this.scale = 1;
    this.x = 0;
    this.y = 0;
  }

  /** Move `group` with this viewport; gestures on `svg` change it. Call the result to let go. */
  attach(svg, group, moved = () => {}) {
    const view = { svg, apply: () => {
      group.setAttribute("transform", `translate(${this.x} ${this.y}) scale(${this.scale})`);
      moved();
    } };
    this.#views.push(view);
    view.apply();
    this.#listen(svg);
    return () => this.#views.splice(this.#views.indexOf(view), 1);
  }

  /** Everything in view again. */
  fit() {
    [this.scale, this.x, this.y] = [1, 0, 0];
    this.#apply();
  }

  /** Zoom by a factor about a point of the picture, by default its middle. */
  zoom(factor, x, y) {
    const box = this.#views[0]?.svg.viewBox.baseVal;
    if (!box) return;
    const [px, py] = [x ?? box.width / 2, y ?? box.height / 2];
    const scale = Math.min(MOST, Math.max(0.5, this.scale * factor));
    this.x = px - ((px - this.x) * scale) / this.scale;
    this.y = py - ((py - this.y) * scale) / this.scale;
    this.scale = scale;
    this.#apply();
  }

  #apply() {
    for (const view of this.#views) view.apply();
  }

  #listen(svg) {
    const held = new Map();
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // else a long page could not be scrolled past the picture
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * 0.004), event.offsetX, event.offsetY);
    }, { passive: false });
    svg.addEventListener("pointerdown", (event) => held.set(event.pointerId, event));
    svg.addEventListener("pointermove", (event) => {
      const before = held.get(event.pointerId);
      if (!before) return;
      const others = [...held.values()].filter((other) => other.pointerId !== event.pointerId);
      if (others.length > 0) {
        const away = (point) => Math.hypot(point.offsetX - others[0].offsetX, point.offsetY - others[0].offsetY) || 1;
        this.zoom(away(event) / away(before), (event.offsetX + others[0].offsetX) / 2,
          (event.offsetY + others[0].offsetY) / 2);
      } else {
        svg.setPointerCapture(event.pointerId);
        this.x += event.offsetX - before.offsetX;
        this.y += event.offsetY - before.offsetY;
        this.#apply();
      }
      held.set(event.pointerId, event);
    });
    for (const end of ["pointerup", "pointercancel", "pointerleave"]) {
      svg.addEventListener(end, (event) => held.delete(event.pointerId));
    }
  }
}
