// The neighbourhood of a target as a scene: nodes and arrows, placed where Python or `layout.js` put them.

import { ranking, strengths } from "./data.js";
import { short } from "./format.js";
import { colorOf, groupColor } from "./palette.js";
import { arrow, gaps, loop, nameSize, ON_NODE } from "./shapes.js";

const NAMED = 80;
const LONGEST = 14;

/**
 * Make the scene.
 * @param target What Content.target gives.
 * @param values A value an edge, which colour and width show.
 * @param visible Which edges to draw, a flag each.
 * @param layout Where the nodes stand and which of them are shown, as `layout.js` gives it.
 * @param box Width and height to fit.
 * @param largest The value that is drawn strongest; null takes the largest of these values.
 * @param asked Whether nodes have the size of their scores (`sized`), and whether arcs of attention over all nodes are drawn (`arcs`).
 */
export function neighbourhoodScene(content, target, values, visible, layout, box, colors, largest = null, asked = {}) {
  const discs = place(content, target, layout, box, colors, asked.sized);
  const { of: strength, largest: scale } = strengths(values, largest);
  const turns = gaps(discs, target.source, target.destination, visible);
  const key = (from, to) => from * 65536 + to;
  const seen = new Set();
  for (let edge = 0; edge < target.size; edge++) if (visible[edge]) seen.add(key(target.source[edge], target.destination[edge]));
  const times = new Map();
  const links = [];
  for (const edge of ranking(strength.map(Math.abs)).reverse()) {
    if (!visible[edge]) continue;
    const [from, to] = [target.source[edge], target.destination[edge]];
    const force = Math.min(1, Math.abs(strength[edge]));
    const r = discs[to].small;
    const width = Math.max(0.5, r * 0.06) + Math.max(2.6, r * 0.42) * force;
    const head = Math.max(3, r * 0.5) + Math.max(4, r * 0.45) * force;
    // Edges in opposite directions bend apart, and so do edges that come several times.
    const before = times.get(key(from, to)) ?? 0;
    times.set(key(from, to), before + 1);
    const bend = (seen.has(key(to, from)) ? 0.09 : 0) + 0.09 * before;
    const shape = from === to ? loop(discs[from], turns[from], width, head) : arrow(discs[from], discs[to], bend, width, head);
    links.push({ edge, ...shape, width, ends: [from, to], fill: colorOf(colors, strength[edge]), relation: target.relationName(edge) });
  }
  const touched = new Set(links.flatMap((link) => link.ends));
  const isTrue = new Set(links.filter((link) => target.truth?.[link.edge]).flatMap((link) => link.ends));
  discs.forEach((disc, node) => {
    disc.isTrue = isTrue.has(node);
    disc.faded = !touched.has(node) && !disc.isTarget;
    disc.hidden = !layout.shown[node];
  });
  const negative = values.some((value) => value < 0);
  return { discs, links, arcs: asked.arcs ? arcsOf(target, discs, layout, colors) : [], truth: (link) => Boolean(target.truth?.[link.edge]), scale: { largest: scale, negative } };
}

/** The strongest pairs of attention over all nodes, from the node that is read to the node that reads it. */
function arcsOf(target, discs, layout, colors) {
  if (!target.arcs) return [];
  const { of: strength } = strengths(target.arcs.score);
  return Array.from(strength.keys()).filter((arc) => [target.arcs.from[arc], target.arcs.to[arc]].every((node) => layout.shown[node])).map((arc) => {
    const [from, to] = [discs[target.arcs.from[arc]], discs[target.arcs.to[arc]]];
    const width = 0.8 + 2.2 * Math.abs(strength[arc]);
    return { ...arrow(from, to, 0.3, width, 8), width, fill: colorOf(colors, strength[arc]), strength: Math.abs(strength[arc]) };
  });
}

function place(content, target, layout, box, colors, sized) {
  const drawn = Array.from(target.nodes.keys()).filter((node) => layout.shown[node]);
  const range = (values) => drawn.reduce(([low, high], node) => [Math.min(low, values[node]), Math.max(high, values[node])], [Infinity, -Infinity]);
  const [[left, right], [top, bottom]] = [range(layout.x), range(layout.y)];
  const margin = 46;
  const fit = Math.min((box.width - 2 * margin) / (right - left || 1e-9), (box.height - 2 * margin - 30) / (bottom - top || 1e-9));
  const scale = Math.min(fit, 150 / layout.spacing);
  const small = Math.max(2.5, Math.min(17, 0.34 * layout.spacing * scale));
  const [cx, cy] = [(left + right) / 2, (top + bottom) / 2];
  const fewNodes = drawn.length <= NAMED;
  const read = sized && target.nodeScores ? strengths(target.nodeScores).of : null;
  const discs = Array.from(target.nodes, (id, node) => {
    const isTarget = target.roots.includes(node);
    const group = target.group?.[node];
    return {
      node,
      x: box.width / 2 + (layout.x[node] - cx) * scale,
      y: box.height / 2 - 8 + (layout.y[node] - cy) * scale,
      small,
      // The area of a node follows its score, around its usual size.
      r: read ? small * (0.5 + 1.1 * Math.sqrt(Math.abs(read[node]))) : isTarget ? Math.max(small * 1.3, 7) : small,
      isTarget,
      fill: group === undefined ? null : groupColor(colors, content.groupRank(group)),
      shape: content.groups?.shapes ? group : 0,
      name: fewNodes || isTarget ? short(target.labels[node], LONGEST) : "",
    };
  });
  for (const node of fewNodes ? drawn : []) discs[node].name = fitted(discs[node], target.labels[node], drawn.map((other) => discs[other]));
  return discs;
}

/** A name that stands below its node, as long as there is room until the next node of the row; none where nothing could be read. */
function fitted(disc, name, others) {
  if (Array.from(name).length <= ON_NODE) return name;
  const size = nameSize(disc);
  const room = Math.min(...others.filter((other) => other !== disc && Math.abs(other.y - disc.y) < 1.5 * size).map((other) => Math.abs(other.x - disc.x)), Infinity);
  const most = Math.min(LONGEST, Math.floor(room / (0.6 * size)) - 1);
  return most >= ON_NODE ? short(name, most) : disc.isTarget ? short(name, ON_NODE) : "";
}
