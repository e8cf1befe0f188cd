// Arrows as filled outlines: one element an edge draws fast, and its points say how near a pointer is.

const SAMPLES = 8;

/** An arrow from one disc to another, bent to the side by `bend` of its length. */
export function arrow(from, to, bend, width, head) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const control = { x: (from.x + to.x) / 2 + 2 * bend * dy, y: (from.y + to.y) / 2 - 2 * bend * dx };
  const start = towards(from, control, from.r);
  const tip = towards(to, control, to.r + 1);
  const base = towards(tip, control, Math.min(head, length(start, tip) * 0.7));
  const mid = { x: control.x, y: control.y };
  const half = width / 2;
  const [atStart, atMid, atBase] = [normal(start, mid), normal(start, base), normal(mid, base)];
  const side = Math.max(head * 0.45, half * 1.6);
  const path = [
    `M${at(start, atStart, half)}Q${at(mid, atMid, half)} ${at(base, atBase, half)}`,
    `L${at(base, atBase, side)}L${at(tip, atBase, 0)}L${at(base, atBase, -side)}L${at(base, atBase, -half)}`,
    `Q${at(mid, atMid, -half)} ${at(start, atStart, -half)}Z`,
  ].join("");
  const line = `M${at(start, atStart, 0)}Q${at(mid, atMid, 0)} ${at(tip, atBase, 0)}`;
  const points = [];
  for (let sample = 0; sample <= SAMPLES; sample++) {
    const t = sample / SAMPLES;
    const [a, b, c] = [(1 - t) ** 2, 2 * t * (1 - t), t ** 2];
    points.push(a * start.x + b * mid.x + c * tip.x, a * start.y + b * mid.y + c * tip.y);
  }
  return { path, line, points };
}

/** A self-loop that points away from its disc at an angle. */
export function loop(disc, angle, width, head) {
  const size = disc.r * 0.85;
  const away = disc.r + size * 0.55;
  const centre = { x: disc.x + away * Math.cos(angle), y: disc.y + away * Math.sin(angle) };
  // Where the loop's circle meets the disc, seen from the loop's middle.
  const open = Math.acos(Math.max(-1, Math.min(1, (away ** 2 + size ** 2 - (disc.r + 1) ** 2) / (2 * away * size))));
  const [first, last] = [angle + Math.PI + open, angle + 3 * Math.PI - open];
  const reach = Math.min(head / size, (last - first) * 0.5);
  const [half, neck] = [width / 2, last - reach];
  const side = Math.max(head * 0.45, half * 1.6);
  const on = (turn, radius) => `${round(centre.x + radius * Math.cos(turn))} ${round(centre.y + radius * Math.sin(turn))}`;
  const [outer, inner] = [size + half, Math.max(size - half, 0.1)];
  const large = neck - first > Math.PI ? 1 : 0;
  const path = [
    `M${on(first, outer)}A${round(outer)} ${round(outer)} 0 ${large} 1 ${on(neck, outer)}`,
    `L${on(neck, size + side)}L${on(last, size)}L${on(neck, Math.max(size - side, 0))}L${on(neck, inner)}`,
    `A${round(inner)} ${round(inner)} 0 ${large} 0 ${on(first, inner)}Z`,
  ].join("");
  const line = `M${on(first, size)}A${round(size)} ${round(size)} 0 1 1 ${on(last, size)}`;
  const points = [];
  for (let sample = 0; sample <= SAMPLES; sample++) {
    const turn = first + ((last - first) * sample) / SAMPLES;
    points.push(centre.x + size * Math.cos(turn), centre.y + size * Math.sin(turn));
  }
  return { path, line, points };
}

/** A straight step from a child to its parent. */
export function step(from, to) {
  const line = `M${round(from.x)} ${round(from.y)}L${round(to.x)} ${round(to.y)}`;
  return { path: line, line, points: [from.x, from.y, to.x, to.y] };
}

/** Names of at most so many characters stand on their nodes, longer ones below. */
export const ON_NODE = 5;

/** The size of letters below a node. */
export const nameSize = (disc) => Math.min(10, (disc.small ?? disc.r) * 0.8);

const CORNERS = [0, 4, 3, 4, 6, 5];
const TURNS = [0, Math.PI / 4, -Math.PI / 2, 0, 0, -Math.PI / 2];

/** The outline of a node: a circle, or a polygon by the number of its type: square, triangle, diamond, hexagon, pentagon. */
export function outline(disc, grow = 0) {
  const kind = disc.shape % CORNERS.length;
  const r = disc.r + grow;
  if (!kind) return ["circle", { cx: disc.x, cy: disc.y, r }];
  const corners = CORNERS[kind];
  const reach = r * (corners === 3 ? 1.35 : corners === 4 ? 1.2 : 1.08); // about the area of the circle
  const points = Array.from({ length: corners }, (_, corner) => {
    const angle = TURNS[kind] + (2 * Math.PI * corner) / corners;
    return `${round(disc.x + reach * Math.cos(angle))},${round(disc.y + reach * Math.sin(angle))}`;
  });
  return ["polygon", { points: points.join(" ") }];
}

/** How far a point is from a line through points. */
export function distance(points, x, y) {
  let nearest = Infinity;
  for (let place = 0; place + 3 < points.length; place += 2) {
    const [ax, ay] = [points[place], points[place + 1]];
    const [dx, dy] = [points[place + 2] - ax, points[place + 3] - ay];
    const along = Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1)));
    nearest = Math.min(nearest, Math.hypot(x - ax - along * dx, y - ay - along * dy));
  }
  return nearest;
}

/** For each node the angle in the middle of the widest gap between its edges: where a self-loop has room. */
export function gaps(discs, source, destination, visible) {
  const angles = discs.map(() => []);
  for (let edge = 0; edge < source.length; edge++) {
    if (!visible[edge]) continue;
    const [from, to] = [discs[source[edge]], discs[destination[edge]]];
    if (from === to) continue;
    const angle = Math.atan2(to.y - from.y, to.x - from.x);
    angles[source[edge]].push(angle);
    angles[destination[edge]].push(angle > 0 ? angle - Math.PI : angle + Math.PI);
  }
  return angles.map((found) => {
    if (found.length === 0) return -Math.PI / 2;
    found.sort((a, b) => a - b);
    let [widest, middle] = [-1, 0];
    found.forEach((angle, place) => {
      const gap = (found[place + 1] ?? found[0] + 2 * Math.PI) - angle;
      if (gap > widest + 1e-9) [widest, middle] = [gap, angle + gap / 2];
    });
    return middle;
  });
}

const length = (a, b) => Math.hypot(b.x - a.x, b.y - a.y);
const round = (value) => Math.round(value * 100) / 100;
const at = (point, direction, shift) => `${round(point.x + direction.x * shift)} ${round(point.y + direction.y * shift)}`;

function towards(from, to, way) {
  const whole = length(from, to) || 1;
  return { x: from.x + ((to.x - from.x) * way) / whole, y: from.y + ((to.y - from.y) * way) / whole };
}

function normal(from, to) {
  const whole = length(from, to) || 1;
  return { x: (to.y - from.y) / whole, y: (from.x - to.x) / whole };
}
