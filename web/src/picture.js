// Draw a scene, say which edge is under the pointer, and show the chosen one.

import { h, s } from "./dom.js";
import { number } from "./format.js";
import { colorOf } from "./palette.js";
import { distance, nameSize, ON_NODE, outline } from "./shapes.js";

const NEAR = 14;
let pictures = 0;

export class Picture {
  #scene = { links: [], discs: [] };
  #colors;
  #release = () => {};

  /**
   * `hover(hit, event)` and `choose(hit, event)` are told what is near the pointer: {edge, step}, where a step is one
   * occurrence in a tree; {node}; or null.
   */
  constructor(viewport, { hover, choose }) {
    this.viewport = viewport;
    this.id = `attree-picture-${pictures++}`;
    this.svg = s("svg", { role: "img", xmlns: "http://www.w3.org/2000/svg" });
    this.element = h("div", { class: "picture" }, this.svg);
    let pressed = null;
    this.svg.addEventListener("pointermove", (event) => {
      if (event.buttons === 0 && event.pointerType !== "touch") hover(this.#nearest(event), event);
    });
    this.svg.addEventListener("pointerleave", (event) => hover(null, event));
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

  /** Groups of nodes that are on screen. */
  groups = new Set();

  /** Draw a scene under a title; `label` is what a screen reader says. */
  draw(scene, colors, title, label, groupOf = () => -1) {
    this.#release();
    this.#scene = scene;
    this.#colors = colors;
    const { width, height } = this.box;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("aria-label", label);
    this.overlay = s("g", { "pointer-events": "none" });
    this.above = s("g", { "pointer-events": "none" });
    this.groups = new Set(scene.discs.filter((disc) => !disc.hidden && disc.fill).map((disc) => groupOf(disc.node)));
    const group = s("g", {}, this.#halos(), this.#links(), this.overlay, this.#discs(), this.#marks(), this.#levels(), this.#arcs(), this.above);
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

  /** Attention over all nodes: dashed arcs from the node that is read to the node that reads it. */
  #arcs() {
    return s("g", { class: "arcs", "pointer-events": "none" }, (this.#scene.arcs ?? []).map((arc) => s("path", {
      d: arc.line, fill: "none", stroke: arc.fill, "stroke-width": arc.width, "stroke-opacity": 0.35 + 0.5 * arc.strength, "stroke-dasharray": "6 3",
    })));
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
      if (disc.hidden) continue;
      if (disc.isTarget) group.append(s(...outlined(disc, Math.min(3.5, disc.r / 2.5), { fill: "none", stroke: colors.target, "stroke-width": Math.min(3, disc.r / 3) })));
      group.append(s(...outlined(disc, 0, {
        fill: disc.fill ?? (disc.isTarget ? colors.target : colors.node),
        stroke: disc.isTrue ? colors.truth : disc.faded ? colors.faint : disc.isTarget ? colors.ink : colors.rim,
        "stroke-width": disc.isTrue ? Math.min(2.5, disc.r / 3) : Math.min(1.2, disc.r / 4),
      })));
      if (disc.name) group.append(this.#name(disc));
    }
    return group;
  }

  /** A node's name: on it where it fits, else below. */
  #name(disc) {
    if (disc.upright) return this.#upright(disc);
    const fits = disc.name.length <= ON_NODE;
    const size = fits ? Math.min(disc.r, (2.6 * disc.r) / Math.max(disc.name.length, 2)) : nameSize(disc);
    const fill = fits && disc.isTarget && !disc.fill ? this.#colors.onTarget : disc.faded ? this.#colors.muted : this.#colors.ink;
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
    return s("g", { "pointer-events": "none" }, (this.#scene.marks ?? []).map((mark) => s("text", {
      class: "times", x: mark.x, y: mark.y, fill: this.#colors.muted, "paint-order": "stroke", stroke: this.#colors.paper,
      "stroke-width": 2.5, ...font(9.5),
    }, mark.text)));
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
      ...(negative ? [["against", "start", x], ["for", "end", x + width]] : []).map(([word, anchor, place]) =>
        s("text", { x: place, y: y - 5, fill: colors.muted, "text-anchor": anchor, ...font(11) }, word)),
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

  /** Show one edge wherever it is drawn, or one step of a tree with its way to the root; and edges that are taken out. */
  highlight(edge, step = -1, cut = []) {
    const { links, discs, steps } = this.#scene;
    const way = [];
    for (let at = step >= 0 && steps ? step - 1 : -1; at >= 0 && steps[at]; at = steps[at].up) way.push(steps[at]);
    const chosen = way.length > 0 ? way : edge < 0 ? [] : links.filter((link) => link.edge === edge);
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
      ...links.filter((link) => cut.includes(link.edge)).map((link) => s("path", {
        class: "cut", d: link.line, fill: "none", stroke: this.#colors.paper, "stroke-width": link.width + 1.5, "stroke-dasharray": "3 4",
      })),
      ...Array.from(rings, (node) => discs[node]).map((disc) => s(...outlined(disc, 2.5, { fill: this.#colors.chosen }))),
    );
    this.above?.replaceChildren(...this.#products(way), ...this.#relation(way.length > 0 ? [] : chosen));
  }

  /** The attention on each step of a way to the root, and the product at its start. */
  #products(way) {
    if (way.length === 0) return [];
    const label = (x, y, text, weight) => s("text", {
      class: weight > 400 ? "product" : "factor", x, y, fill: this.#colors.ink, "text-anchor": "middle", "paint-order": "stroke",
      stroke: this.#colors.paper, "stroke-width": 4, "stroke-linejoin": "round", ...font(11.5, weight),
    }, text);
    // Beside the middle of each step, on its outer side: on the line itself a number would be hidden by it.
    const factors = way.map(({ points: [x1, y1, x2, y2], factor, width }) => {
      const away = (width / 2 + 6 + 3.4 * factor.length) * (x1 < x2 ? -1 : 1);
      return label((x1 + x2) / 2 + away, (y1 + y2) / 2 + 4, factor, 400);
    });
    const start = this.#scene.discs[way[0].step];
    const [least, most] = [70, this.box.width - 70];
    const x = Math.max(least, Math.min(most, start.x));
    const text = way.length > 1 ? `${way.map((link) => link.factor).join(" × ")} = ${way[0].product}` : way[0].product;
    return [...factors, label(x, start.y + start.r + 15, text, 650)];
  }

  /** The relation of the chosen edge, beside it. */
  #relation(chosen) {
    return chosen.filter((link) => link.relation).slice(0, 1).map((link) => {
      const middle = (link.points.length / 4 | 0) * 2;
      return s("text", {
        class: "relation", x: link.points[middle], y: link.points[middle + 1] - 6, fill: this.#colors.ink, "text-anchor": "middle",
        "paint-order": "stroke", stroke: this.#colors.paper, "stroke-width": 4, ...font(11.5, 600),
      }, link.relation);
    });
  }

  /** Whether an edge is drawn. */
  shows(edge) {
    return this.#scene.links.some((link) => link.edge === edge);
  }

  #nearest(event) {
    const { x, y, scale } = this.viewport;
    const frame = this.svg.getBoundingClientRect();
    const [px, py] = [(event.clientX - frame.left - x) / scale, (event.clientY - frame.top - y) / scale];
    const inside = this.#scene.discs.find((disc) => !disc.hidden && Math.hypot(disc.x - px, disc.y - py) <= Math.max(disc.r, 4 / scale));
    if (inside?.step > 0) return this.#hit(this.#scene.steps[inside.step - 1]);
    if (inside) return { node: inside.node };
    let [best, found] = [NEAR / scale, null];
    for (const link of this.#scene.links) {
      const away = distance(link.points, px, py) - link.width / 2;
      if (away <= best) [best, found] = [away, this.#hit(link)];
    }
    return found;
  }

  #hit(link) {
    return { edge: link.edge, step: link.step ?? -1 };
  }
}

/** A node's outline as arguments of an SVG element. */
function outlined(disc, grow, attributes) {
  const [tag, place] = outline({ shape: 0, ...disc }, grow);
  return [tag, { ...place, ...attributes }];
}

const font = (size, weight = 400) => ({
  "font-size": Math.round(size * 10) / 10, "font-weight": weight,
  "font-family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
});
