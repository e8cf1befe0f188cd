// Training curves: explanation quality beside accuracy, on one axis of steps.

import { h, s } from "./dom.js";
import { number, whole } from "./format.js";
import { standingOut } from "./palette.js";

const LABELS = { acc: "accuracy", auc: "AUC", within_pearson: "within targets, Pearson", truth_auroc: "ground truth, AUROC", loss: "loss" };
// Told apart without colour: the first is drawn through.
const DASHES = [null, "6 2.5", "2 2.5", "9 2.5 2 2.5"];
// Panels of one statistic stand in this order, then others by name.
const PROTOCOLS = ["removal", "weight", "coefficient"];
const SIZE = { width: 230, height: 130, left: 34, right: 8, top: 8, bottom: 20 };

/** Panels, one a kind of metric; null if there are no curves. The first kinds stand open, the rest fold away. */
export function curvePanels(content, colors) {
  const panels = new Map();
  const dash = dashes(content.methods);
  const known = content.curves.map((curve) => ({ ...describe(content, curve.name), points: curve.points.filter(([, value]) => value !== null) }))
    .filter(({ points }) => points.length > 0);
  for (const curve of known.sort((a, b) => byProtocol(a.protocol, b.protocol) || a.method - b.method)) {
    panels.set(curve.panel, [...(panels.get(curve.panel) ?? []), { ...curve, dash: dash[curve.method] }]);
  }
  if (panels.size === 0) return null;
  const steps = [...panels.values()].flat().flatMap((curve) => curve.points.map(([step]) => step));
  const range = [Math.min(...steps), Math.max(...steps)];
  const kinds = Object.keys(LABELS);
  const place = ([, [first]]) => (kinds.includes(first.kind) ? kinds.indexOf(first.kind) : kinds.length);
  const sorted = [...panels].sort((a, b) => place(a) - place(b));
  const open = Math.max(2, sorted.filter((entry) => place(entry) < kinds.length).length);
  // Panels of the same kind (one statistic by several protocols) are compared: they share one scale.
  const values = (curves) => curves.flatMap((curve) => curve.points.map(([, value]) => value));
  const alike = (kind) => sorted.flatMap(([, curves]) => (curves[0].kind === kind ? values(curves) : []));
  const drawn = sorted.map(([title, curves]) => {
    const all = alike(curves[0].kind);
    return new Panel(title, curves, range, [Math.min(...all), Math.max(...all)], colors).element;
  });
  const rest = drawn.slice(open);
  return h("div", { class: "curves" },
    h("div", { class: "panels" }, drawn.slice(0, open)),
    rest.length > 0 ? h("details", {}, h("summary", {}, `${rest.length} more`), h("div", { class: "panels" }, rest)) : null);
}

/** What a curve is of: explain/<method>/<protocol>/<statistic> stands with its like, in its method's colour; others are inked. */
function describe(content, name) {
  const words = name.split("/");
  const kind = words.at(-1);
  const title = LABELS[kind] ?? content.statistics[kind] ?? kind.replaceAll("_", " ");
  const isMethod = words[0] === "explain" && words.length > 2;
  const protocol = isMethod && words.length > 3 ? words[2] : "";
  const method = isMethod ? content.methods.findIndex((own) => own.name === words[1]) : -1;
  const label = isMethod ? content.label[words[1]] ?? words[1] : words.slice(0, -1).join(" ") || name;
  return { name, kind, protocol, panel: protocol ? `${title}, ${protocol}` : title, label, method, hue: content.methods[method]?.color };
}

/** How protocols are sorted: by the strength of what they do, then by name. */
export function byProtocol(a, b) {
  const place = (name) => (PROTOCOLS.includes(name) ? PROTOCOLS.indexOf(name) : PROTOCOLS.length);
  return a === b ? 0 : place(a) - place(b) || (a < b ? -1 : 1);
}

/** A dash for each method: by its place, or the next one if a method of the same colour has that. */
function dashes(methods) {
  const taken = new Set();
  return methods.map(({ color }, place) => {
    const tries = DASHES.map((_, step) => DASHES[(place + step) % DASHES.length]);
    const dash = tries.find((one) => !taken.has(`${color} ${one}`)) ?? tries[0];
    taken.add(`${color} ${dash}`);
    return dash;
  });
}

class Panel {
  constructor(title, curves, range, [low, high], colors) {
    this.curves = curves.map((curve, place) => ({
      ...curve,
      dash: curve.method < 0 ? DASHES[place % DASHES.length] : curve.dash,
      color: curve.hue ? standingOut(colors, curve.hue) : colors.ink,
    }));
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    const across = SIZE.width - SIZE.left - SIZE.right;
    const up = SIZE.height - SIZE.top - SIZE.bottom;
    this.x = (step) => SIZE.left + ((step - range[0]) / (range[1] - range[0] || 1)) * across;
    this.y = (value) => SIZE.top + (1 - (value - low + room) / (high - low + 2 * room)) * up;
    this.colors = colors;
    const last = this.curves.map((curve) => `${curve.label} ${number(curve.points.at(-1)[1])}`).join(", ");
    this.cursor = s("line", { y1: SIZE.top, y2: SIZE.height - SIZE.bottom, stroke: colors.muted, visibility: "hidden" });
    this.legend = h("ul", { class: "legend" });
    const svg = s("svg", {
      role: "img", viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, "aria-label": `${title} while training; at the end: ${last}`,
    }, this.#axes(low, high, range), this.cursor, this.curves.map((curve) => this.#line(curve)));
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect();
      const part = (((event.clientX - frame.left) / frame.width) * SIZE.width - SIZE.left) / across;
      this.#read(range[0] + part * (range[1] - range[0]));
    });
    svg.addEventListener("pointerleave", () => this.#read(null));
    this.element = h("figure", { class: "curve" }, h("figcaption", {}, title), svg, this.legend);
    this.#read(null);
  }

  #axes(low, high, range) {
    const parts = [];
    const text = (x, y, anchor, content) => s("text", { x, y, "text-anchor": anchor, "font-size": 11, fill: this.colors.muted }, content);
    for (const value of ticks(low, high)) {
      const y = this.y(value);
      parts.push(s("line", { x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: y, y2: y, stroke: this.colors.faint }),
        text(SIZE.left - 6, y + 4, "end", number(value)));
    }
    parts.push(text(SIZE.left, SIZE.height - 8, "start", whole(range[0])), text(SIZE.width - SIZE.right, SIZE.height - 8, "end", `step ${whole(range[1])}`));
    return s("g", {}, parts);
  }

  #line(curve) {
    const points = curve.points.map(([step, value]) => `${this.x(step).toFixed(1)},${this.y(value).toFixed(1)}`);
    const [x, y] = points.at(-1).split(",");
    return s("g", {},
      s("polyline", { points: points.join(" "), fill: "none", stroke: curve.color, "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": curve.dash }),
      s("circle", { cx: x, cy: y, r: 3, fill: curve.color }));
  }

  /** Show the values at a step, or those at the end. */
  #read(step) {
    const nearest = (points) => (step === null ? points.at(-1)
      : points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best)));
    const found = this.curves.map((curve) => nearest(curve.points));
    this.legend.replaceChildren(...this.curves.map((curve, place) => {
      const swatch = s("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: curve.color, "stroke-width": 2.5, "stroke-dasharray": curve.dash });
      return h("li", {}, s("svg", { class: "sample", viewBox: "0 0 22 8", "aria-hidden": "true" }, swatch), curve.label, h("b", {}, number(found[place][1])));
    }));
    if (step === null) return this.cursor.setAttribute("visibility", "hidden");
    const at = this.x(found[0][0]);
    this.cursor.setAttribute("visibility", "visible");
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
    return undefined;
  }
}

/** Round values within a range, about `parts` of them. */
export function ticks(low, high, parts = 3) {
  const rough = (high - low) / parts || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = power * ([1, 2, 5, 10].find((one) => one * power >= rough * 0.999) ?? 10);
  const found = [];
  for (let value = Math.ceil(low / unit) * unit; value <= high + unit * 1e-9; value += unit) found.push(Math.round(value / unit) * unit);
  return found.length > 0 ? found : [low];
}
