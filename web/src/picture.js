// Draw a scene, say which edge is under the pointer, and show the chosen one.

import { h, s } from "./dom.js";
import { number } from "./format.js";
import { colorOf } from "./palette.js";
import { distance } from "./shapes.js";

const NEAR = 14;
let pictures = 0;

export class Picture {
  #scene = { links: [], discs: [] };
  #colors;
  #release = () => {};

  /** `hover(edge, event)` and `choose(edge, event)` are told the edge near the pointer, -1 for none. */
  constructor(viewport, { hover, choose }) {
    this.viewport = viewport;
    this.id = `attree-picture-${pictures++}`;
    this.svg = s("svg", { role: "img", xmlns: "http://www.w3.org/2000/svg" });
    this.element = h("div", { class: "picture" }, this.svg);
    let pressed = null;
    this.svg.addEventListener("pointermove", (event) => {
      if (event.buttons === 0) hover(this.#nearest(event), event);
    });
    this.svg.addEventListener("pointerleave", (event) => hover(-1, event));
    this.svg.addEventListener("pointerdown", (event) => (pressed = [event.clientX, event.clientY]));
    this.svg.addEventListener("click", (event) => {
      const moved = pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) > 5;
      if (!moved) choose(this.#nearest(event), event);
    });
  }

  /** Width and height of the picture on screen. */
  get box() {
    return { width: Math.max(this.element.clientWidth, 220), height: Math.max(this.element.clientHeight, 240) };
  }

  /** Draw a scene under a title; `label` is what a screen reader says. */
  draw(scene, colors, title, label) {
    this.#release();
    this.#scene = scene;
    this.#colors = colors;
    const { width, height } = this.box;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("aria-label", label);
    this.overlay = s("g", { "pointer-events": "none" });
    const group = s("g", {}, this.#halos(), this.#links(), this.overlay, this.#discs(), this.#marks(), this.#levels());
    this.svg.replaceChildren(
      s("rect", { width: "100%", height: "100%", fill: colors.paper }),
      group,
      s("text", { x: 12, y: 22, fill: colors.ink, ...font(14, 600) }, title),
      this.#legend(height),
    );
    this.#release = this.viewport.attach(this.svg, group);
  }

  #halos() {
    const lines = this.#scene.links.filter(this.#scene.truth);
    const width = Math.max(5, ...lines.map((link) => link.width + 5));
    return s("path", {
      d: lines.map((link) => link.line).join(""), fill: "none", stroke: this.#colors.truth, "stroke-opacity": 0.42,
      "stroke-width": width, "stroke-linecap": "round",
    });
  }

  #links() {
    return s("g", {}, this.#scene.links.map((link) => link.fill
      ? s("path", { d: link.path, fill: link.fill })
      : s("path", {
        d: link.path, fill: "none", stroke: link.stroke, "stroke-width": link.width,
        "stroke-dasharray": link.isLoop ? "5 3" : null,
      })));
  }

  #discs() {
    const colors = this.#colors;
    const group = s("g", { "pointer-events": "none" });
    for (const disc of this.#scene.discs) {
      group.append(s("circle", {
        cx: disc.x, cy: disc.y, r: disc.r,
        fill: disc.isTarget ? colors.target : colors.node,
        stroke: disc.isTrue ? colors.truth : disc.faded ? colors.faint : colors.rim,
        "stroke-width": disc.isTrue ? Math.min(2.5, disc.r / 3) : Math.min(1.2, disc.r / 4),
      }));
      if (disc.name) group.append(this.#name(disc));
    }
    return group;
  }

  /** A node's name: on it where it fits, else below. */
  #name(disc) {
    if (disc.upright) return this.#upright(disc);
    const fits = disc.name.length <= 5;
    const size = fits ? Math.min(disc.r, (2.6 * disc.r) / Math.max(disc.name.length, 2)) : Math.min(10, (disc.small ?? disc.r) * 0.8);
    const fill = fits && disc.isTarget ? this.#colors.onTarget : disc.faded ? this.#colors.muted : this.#colors.ink;
    return s("text", {
      x: disc.x, y: fits ? disc.y + size * 0.36 : disc.y + disc.r + size + 1, fill, "text-anchor": "middle",
      "paint-order": "stroke", stroke: fits ? null : this.#colors.paper, "stroke-width": fits ? null : size / 4,
      ...font(size),
    }, disc.name);
  }

  /** A name that runs down from its node: where nodes stand close together. */
  #upright(disc) {
    const size = Math.min(10, disc.upright);
    const place = `translate(${disc.x - size * 0.34} ${disc.y + disc.r + 3}) rotate(90)`;
    return s("text", { transform: place, fill: this.#colors.muted, ...font(size) }, disc.name);
  }

  #marks() {
    const colors = this.#colors;
    return s("g", { "pointer-events": "none" }, (this.#scene.marks ?? []).flatMap((mark) => [
      s("circle", { cx: mark.x, cy: mark.y, r: mark.r, fill: colors.paper, stroke: colors.truth, "stroke-width": mark.r / 7 }),
      s("text", {
        x: mark.x, y: mark.y + mark.r * 0.32, fill: colors.ink, "text-anchor": "middle", ...font(mark.r * 0.95),
      }, mark.text),
    ]));
  }

  #levels() {
    return s("g", {}, (this.#scene.levels ?? []).map((level) =>
      s("text", { x: level.x, y: level.y, fill: this.#colors.muted, ...font(12) }, level.text)));
  }

  #legend(height) {
    const { largest, negative } = this.#scene.scale;
    const colors = this.#colors;
    const [x, y, width] = [12, height - 22, negative ? 180 : 120];
    const stops = Array.from({ length: 9 }, (_, place) => {
      const strength = negative ? place / 4 - 1 : place / 8;
      return s("stop", { offset: place / 8, "stop-color": colorOf(colors, strength) });
    });
    const text = (place, anchor, content) =>
      s("text", { x: place, y: y + 19, fill: colors.muted, "text-anchor": anchor, ...font(11) }, content);
    const ends = negative ? [-largest, 0, largest] : [0, largest];
    const anchors = negative ? ["start", "middle", "end"] : ["start", "end"];
    const parts = [
      s("linearGradient", { id: this.id }, stops),
      s("rect", { x, y, width, height: 7, rx: 2, fill: `url(#${this.id})` }),
      ...ends.map((end, place) => text(x + (width * place) / (ends.length - 1), anchors[place], number(end))),
    ];
    if (this.#scene.links.some(this.#scene.truth)) {
      const start = x + width + 22;
      parts.push(
        s("rect", { x: start, y, width: 26, height: 7, rx: 3, fill: colors.truth, "fill-opacity": 0.5 }),
        text(start, "start", "true explanation"),
      );
    }
    return s("g", { "pointer-events": "none" }, parts);
  }

  /** Show one edge, wherever it is drawn; -1 shows none. */
  highlight(edge) {
    const chosen = edge < 0 ? [] : this.#scene.links.filter((link) => link.edge === edge);
    const rings = new Set(chosen.flatMap((link) => link.ends));
    this.overlay?.replaceChildren(
      ...chosen.flatMap((link) => [
        s("path", {
          d: link.line, fill: "none", stroke: this.#colors.chosen, "stroke-width": link.width + 4.5,
          "stroke-linecap": "round", "stroke-opacity": 0.85,
        }),
        s("path", link.fill
          ? { d: link.path, fill: link.fill, stroke: this.#colors.paper, "stroke-width": 0.8 }
          : { d: link.line, stroke: link.stroke, "stroke-width": link.width + 0.8, fill: "none" }),
      ]),
      ...Array.from(rings, (node) => this.#scene.discs[node]).map((disc) =>
        s("circle", { cx: disc.x, cy: disc.y, r: disc.r + 2.5, fill: this.#colors.chosen })),
    );
  }

  /** Whether an edge is drawn. */
  shows(edge) {
    return this.#scene.links.some((link) => link.edge === edge);
  }

  #nearest(event) {
    const { x, y, scale } = this.viewport;
    const frame = this.svg.getBoundingClientRect();
    const [px, py] = [(event.clientX - frame.left - x) / scale, (event.clientY - frame.top - y) / scale];
    let [best, found] = [NEAR / scale, -1];
    for (const link of this.#scene.links) {
      const away = distance(link.points, px, py) - link.width / 2;
      if (away <= best) [best, found] = [away, link.edge];
    }
    return found;
  }
}

const font = (size, weight = 400) => ({
  "font-size": Math.round(size * 10) / 10, "font-weight": weight,
  "font-family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
});
