// The neighbourhood of a target as a scene: discs and arrows, placed where Python put them.

import { ranking, strengths } from "./data.js";
import { short } from "./format.js";
import { colorOf } from "./palette.js";
import { arrow, gaps, loop } from "./shapes.js";

const NAMED = 80;

/**
 * Make the scene.
 * @param target What Content.target gives.
 * @param values A value an edge, which colour and width show.
 * @param visible Which edges to draw, a flag each.
 * @param box Width and height to fit.
 */
export function neighbourhoodScene(target, values, visible, box, colors) {
  const discs = place(target, box);
  const { of: strength, largest } = strengths(values);
  const turns = gaps(discs, target.source, target.destination);
  const key = (from, to) => from * 65536 + to;
  const seen = new Set(Array.from(target.source, (from, edge) => key(from, target.destination[edge])));
  const times = new Map();
  const links = [];
  for (const edge of ranking(strength.map(Math.abs)).reverse()) {
    if (!visible[edge]) continue;
    const [from, to] = [target.source[edge], target.destination[edge]];
    const force = Math.abs(strength[edge]);
    const r = discs[to].small;
    const width = Math.max(0.5, r * 0.06) + Math.max(2.6, r * 0.42) * force;
    const head = Math.max(3, r * 0.5) + Math.max(4, r * 0.45) * force;
    // Edges in opposite directions bend apart, and so do edges that come several times.
    const before = times.get(key(from, to)) ?? 0;
    times.set(key(from, to), before + 1);
    const bend = (seen.has(key(to, from)) ? 0.09 : 0) + 0.09 * before;
    const shape = from === to ? loop(discs[from], turns[from], width, head) : arrow(discs[from], discs[to], bend, width, head);
    links.push({ edge, ...shape, width, ends: [from, to], fill: colorOf(colors, strength[edge]) });
  }
  const touched = new Set(links.flatMap((link) => link.ends));
  const isTrue = new Set(links.filter((link) => target.truth?.[link.edge]).flatMap((link) => link.ends));
  discs.forEach((disc, node) => {
    disc.isTrue = isTrue.has(node);
    disc.faded = !touched.has(node) && !disc.isTarget;
  });
  const negative = values.some((value) => value < 0);
  return { discs, links, truth: (link) => Boolean(target.truth?.[link.edge]), scale: { largest, negative } };
}

function place(target, box) {
  const range = (values) => [Math.min(...values), Math.max(...values)];
  const [[left, right], [top, bottom]] = [range(target.x), range(target.y)];
  const margin = 46;
  const fit = Math.min((box.width - 2 * margin) / (right - left || 1e-9), (box.height - 2 * margin - 30) / (bottom - top || 1e-9));
  const scale = Math.min(fit, 150 / target.spacing);
  const small = Math.max(2.5, Math.min(17, 0.34 * target.spacing * scale));
  const [cx, cy] = [(left + right) / 2, (top + bottom) / 2];
  const fewNodes = target.names.length <= NAMED;
  return Array.from(target.nodes, (id, node) => {
    const isTarget = node === target.target;
    return {
      x: box.width / 2 + (target.x[node] - cx) * scale,
      y: box.height / 2 - 8 + (target.y[node] - cy) * scale,
      small,
      r: isTarget ? Math.max(small * 1.3, 7) : small,
      isTarget,
      name: fewNodes || isTarget ? short(target.names[node], 14) : "",
    };
  });
}
