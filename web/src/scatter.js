// Points of runs: quality against accuracy or against a setting; a click opens the run.

import { h, s } from "./dom.js";
import { number, short } from "./format.js";
import { colorOf, standingOut } from "./palette.js";
import { ticks } from "./curves.js";

const SIZE = { width: 460, height: 280, left: 48, right: 14, top: 12, bottom: 46 };
/** About the width of a character of an axis label. */
const CHARACTER = 6.4;
// Corners of markers around their middle, in radii; a circle and a square are drawn as such.
const CORNERS = {
  diamond: [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  triangle: [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
  cross: [[-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]],
  "triangle down": [[0, 1.2], [1.1, -0.8], [-1.1, -0.8]],
};
const SHAPES = ["circle", "square", ...Object.keys(CORNERS)];
/** Colours of Okabe and Ito. */
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#32038f"];

/** The looks of things with a name and perhaps a colour: a Map from key to {label, color, shape}. Many without colours go from pale to dark. */
export function looksOf(entries, colors) {
  const own = (place) => (entries.length <= COLORS.length ? standingOut(colors, COLORS[place]) : colorOf(colors, 0.15 + (0.85 * place) / (entries.length - 1)));
  return new Map(entries.map(([key, label, color], place) => [key, { label, color: color ? standingOut(colors, color) : own(place), shape: SHAPES[place % SHAPES.length] }]));
}

/**
 * A chart of points.
 * @param points {x, y, key, run, text, faint} each; x is a number, or a place among `labels`; `key` is one of `looks`.
 * @param labels Names of evenly spaced places on the x axis; null for a scale of numbers.
 * @param joined Lines to draw: {key, dash, points: [[x, y], ...]}.
 * @param range The least and the largest y of this chart and those beside it.
 * @param limit A place on the x axis that is marked by a line.
 */
export function scatter({ title, note, xTitle, points, looks, labels = null, joined = [], range = null, limit = null, choose, chosen, colors }) {
  const roomy = (values) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const room = (high - low || Math.abs(high) || 1) * 0.07;
    return [low - room, high + room];
  };
  const [left, right] = labels ? [-0.5, labels.length - 0.5] : roomy(points.map((point) => point.x));
  const [low, high] = roomy(range ?? points.map((point) => point.y));
  const wide = SIZE.width - SIZE.left - SIZE.right;
  const marks = labels ? labels.map((label, place) => [place, label]) : ticks(left, right, 5).map((value) => [value, number(value)]);
  // Labels that do not fit side by side: of numbers only some are written, names are tilted.
  const longest = Math.max(...marks.map(([, label]) => Math.min(label.length, 16))) * CHARACTER + 10;
  const fits = longest <= wide / (labels?.length ?? 1);
  const areNames = labels?.some((label) => Number.isNaN(Number(label)));
  const tilt = labels && !fits && areNames && labels.length <= 24;
  const every = labels && !fits && !tilt ? Math.ceil((longest * labels.length) / wide) : 1;
  const below = tilt ? Math.min(70, longest * 0.6) : 0;
  const height = SIZE.height + below;
  const bottom = SIZE.height - SIZE.bottom;
  const x = (value) => SIZE.left + ((value - left) / (right - left || 1)) * wide;
  const y = (value) => SIZE.top + (1 - (value - low) / (high - low || 1)) * (bottom - SIZE.top);
  const text = (px, py, anchor, content, size = 11, more = {}) => s("text", { x: px, y: py, "text-anchor": anchor, "font-size": size, fill: colors.muted, ...more }, content);
  const parts = [];
  for (const value of ticks(low, high, 5)) {
    parts.push(s("line", { x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: y(value), y2: y(value), stroke: colors.faint }),
      text(SIZE.left - 6, y(value) + 4, "end", number(value)));
  }
  for (const [value, label] of marks.filter((_, place) => place % every === 0)) {
    parts.push(tilt ? text(x(value) + 4, bottom + 14, "end", short(label, 16), 11, { transform: `rotate(-35 ${x(value) + 4} ${bottom + 14})` })
      : text(x(value), bottom + 16, "middle", short(label, 16), 11));
  }
  parts.push(text((SIZE.left + SIZE.width - SIZE.right) / 2, height - 8, "middle", xTitle, 12));
  if (limit !== null && limit > left && limit < right) {
    parts.push(s("line", { x1: x(limit), x2: x(limit), y1: SIZE.top, y2: bottom, stroke: colors.muted, "stroke-dasharray": "2 3" }));
  }
  const colorOfKey = (key) => looks.get(key)?.color ?? colors.ink;
  for (const line of joined) {
    parts.push(s("polyline", {
      points: line.points.map(([px, py]) => `${x(px).toFixed(1)},${y(py).toFixed(1)}`).join(" "), fill: "none",
      stroke: colorOfKey(line.key), "stroke-width": 1.6, "stroke-opacity": 0.75, "stroke-dasharray": line.dash ?? null,
    }));
  }
  // What is faint lies below, the chosen run on top.
  const isChosen = (point) => point.run === chosen;
  for (const point of [...points].sort((a, b) => isChosen(a) - isChosen(b) || Boolean(b.faint) - Boolean(a.faint))) {
    const look = { fill: colorOfKey(point.key), "fill-opacity": isChosen(point) ? 1 : point.faint ? 0.3 : 0.85, stroke: isChosen(point) ? colors.ink : "none", "stroke-width": 1.5 };
    parts.push(s("g", {
      class: "point", role: "button", tabindex: -1, "data-run": point.run, "data-method": point.method, "data-key": point.key, "data-x": point.x, "aria-label": `${point.text}. Open this run`,
      click: () => choose(point.run),
    }, marker(looks.get(point.key)?.shape ?? "circle", x(point.x), y(point.y), isChosen(point) ? 6 : 4, look), s("title", {}, point.text)));
  }
  const about = `${title}: ${points.length} points; arrow keys go from point to point, Enter opens a run, and the table lists the runs`;
  const svg = s("svg", { role: "group", viewBox: `0 0 ${SIZE.width} ${height}`, "aria-label": about, keydown: steps }, parts);
  // One point of a chart is in the order of the Tab key.
  svg.querySelector(".point")?.setAttribute("tabindex", "0");
  return h("figure", { class: "scatter" }, h("figcaption", {}, title, h("small", {}, ` ${note}`)), svg);
}

/** Arrow keys move the focus along the x axis; Enter and space do what a click does. */
function steps(event) {
  const points = [...event.currentTarget.querySelectorAll(".point")];
  const place = points.indexOf(event.target);
  if (event.key === "Enter" || event.key === " ") event.target.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  else {
    const across = (point) => Number(point.dataset.x);
    const order = [...points].sort((a, b) => across(a) - across(b));
    const next = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (next === undefined || place < 0) return;
    const to = order[(order.indexOf(points[place]) + next + order.length) % order.length];
    points[place].setAttribute("tabindex", "-1");
    to.setAttribute("tabindex", "0");
    to.focus();
  }
  event.preventDefault();
}

function marker(shape, x, y, r, attributes) {
  if (shape === "circle") return s("circle", { cx: x, cy: y, r, ...attributes });
  if (shape === "square") return s("rect", { x: x - r * 0.9, y: y - r * 0.9, width: r * 1.8, height: r * 1.8, ...attributes });
  return s("polygon", { points: CORNERS[shape].map(([dx, dy]) => `${x + dx * r},${y + dy * r}`).join(" "), ...attributes });
}

/** What the colours and markers of the points mean. */
export function legend(title, looks, colors) {
  return h("ul", { class: "legend" }, h("li", { class: "meaning" }, `${title}:`), [...looks.values()].map(({ label, color, shape }) => h("li", {},
    s("svg", { class: "sample", viewBox: "0 0 14 14", width: 14, height: 14, "aria-hidden": "true" }, marker(shape, 7, 7, 4.5, { fill: color })), label)));
}

/** Of points {x, y}, those that no other beats in both, from left to right. */
export function front(points) {
  const order = [...points].sort((a, b) => b.x - a.x || b.y - a.y);
  const best = [];
  for (const point of order) if (best.length === 0 || point.y > best.at(-1).y) best.push(point);
  return best.reverse();
}
