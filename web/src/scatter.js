// Points of runs: quality against a setting or against accuracy; a click opens the run.

import { h, s } from "./dom.js";
import { number } from "./format.js";
import { standingOut } from "./palette.js";
import { ticks } from "./curves.js";

const SIZE = { width: 460, height: 280, left: 48, right: 14, top: 12, bottom: 46 };
// Corners of markers around their middle, in radii; a circle and a square are drawn as such.
const CORNERS = {
  diamond: [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  triangle: [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
  cross: [[-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]],
  "triangle down": [[0, 1.2], [1.1, -0.8], [-1.1, -0.8]],
};
const SHAPES = ["circle", "square", ...Object.keys(CORNERS)];

/**
 * A chart of points.
 * @param points {x, y, method, run, text} each; x is a number, or a place among `labels`.
 * @param labels Names of evenly spaced places on the x axis; null for a scale of numbers.
 * @param joined Lines to draw: {color, points: [[x, y], ...]}.
 */
export function scatter({ title, xTitle, yTitle, points, methods, labels = null, joined = [], choose, chosen, colors }) {
  const range = (values) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const room = (high - low || Math.abs(high) || 1) * 0.07;
    return [low - room, high + room];
  };
  const [left, right] = labels ? [-0.5, labels.length - 0.5] : range(points.map((point) => point.x));
  const [low, high] = range(points.map((point) => point.y));
  const x = (value) => SIZE.left + ((value - left) / (right - left || 1)) * (SIZE.width - SIZE.left - SIZE.right);
  const y = (value) => SIZE.top + (1 - (value - low) / (high - low || 1)) * (SIZE.height - SIZE.top - SIZE.bottom);
  const look = new Map(methods.map(({ name, color }, place) => [name, [standingOut(colors, color), SHAPES[place % SHAPES.length]]]));
  const text = (px, py, anchor, content, size = 11) => s("text", { x: px, y: py, "text-anchor": anchor, "font-size": size, fill: colors.muted }, content);
  const parts = [];
  for (const value of ticks(low, high, 5)) {
    parts.push(s("line", { x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: y(value), y2: y(value), stroke: colors.faint }),
      text(SIZE.left - 6, y(value) + 4, "end", number(value)));
  }
  const bottom = SIZE.height - SIZE.bottom;
  const every = labels ? Math.ceil(labels.length / 9) : 1;
  const marks = labels ? labels.map((label, place) => [place, label]).filter(([place]) => place % every === 0) : ticks(left, right, 5).map((value) => [value, number(value)]);
  for (const [value, label] of marks) parts.push(text(x(value), bottom + 16, "middle", label));
  parts.push(text((SIZE.left + SIZE.width - SIZE.right) / 2, SIZE.height - 8, "middle", xTitle, 12));
  for (const line of joined) {
    parts.push(s("polyline", {
      points: line.points.map(([px, py]) => `${x(px).toFixed(1)},${y(py).toFixed(1)}`).join(" "), fill: "none",
      stroke: line.color ? standingOut(colors, line.color) : colors.ink, "stroke-width": 1.6, "stroke-opacity": 0.75, "stroke-dasharray": line.dash ?? null,
    }));
  }
  for (const point of points) {
    const [color, shape] = look.get(point.method) ?? [colors.ink, "circle"];
    const isChosen = point.run === chosen;
    parts.push(s("g", {
      class: "point", role: "button", tabindex: -1, "data-run": point.run, "data-method": point.method, "aria-label": `${point.text}. Open this run`,
      click: () => choose(point.run), keydown: (event) => event.key === "Enter" && choose(point.run),
    }, marker(shape, x(point.x), y(point.y), isChosen ? 6 : 4, { fill: color, "fill-opacity": isChosen ? 1 : 0.72, stroke: isChosen ? colors.ink : "none", "stroke-width": 1.5 }),
    s("title", {}, point.text)));
  }
  const svg = s("svg", { role: "group", viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, "aria-label": `${title}: ${points.length} points; the table lists the runs` }, parts);
  return h("figure", { class: "scatter" }, h("figcaption", {}, title, h("small", {}, ` ${yTitle}`)), svg);
}

function marker(shape, x, y, r, attributes) {
  if (shape === "circle") return s("circle", { cx: x, cy: y, r, ...attributes });
  if (shape === "square") return s("rect", { x: x - r * 0.9, y: y - r * 0.9, width: r * 1.8, height: r * 1.8, ...attributes });
  const corners = CORNERS[shape];
  return s("polygon", { points: corners.map(([dx, dy]) => `${x + dx * r},${y + dy * r}`).join(" "), ...attributes });
}

/** A legend of methods, with the markers of the points. */
export function methodLegend(methods, colors) {
  return h("ul", { class: "legend" }, methods.map(({ label, color }, place) => h("li", {},
    s("svg", { class: "sample", viewBox: "0 0 14 14", width: 14, height: 14, "aria-hidden": "true" },
      marker(SHAPES[place % SHAPES.length], 7, 7, 4.5, { fill: standingOut(colors, color) })), label)));
}

/** Of points {x, y}, those that no other beats in both, from left to right. */
export function front(points) {
  const order = [...points].sort((a, b) => b.x - a.x || b.y - a.y);
  const kept = [];
  for (const point of order) if (kept.length === 0 || point.y > kept.at(-1).y) kept.push(point);
  return kept.reverse();
}
