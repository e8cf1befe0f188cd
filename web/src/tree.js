// The computation tree: everything a network computes for one target, with the attention on every step.

import { colorOf, groupColor } from "./palette.js";
import { number, short } from "./format.js";
import { step } from "./shapes.js";

/** Most nodes of a tree to draw, at first and at all; of a larger one the steps with the most attention to the root. */
export const FIRST_NODES = 120;
export const MOST_NODES = 400;
const MARK_ROOM = 15;

/**
 * Grow the tree from the attention on a target's edges: {node, depth, parent, edge, attention, flow} each, parents
 * first. `flow` is the product of attention from here to the root. A child's product is at most its parent's, so the
 * strongest steps always hang together.
 */
export function growTree(target, most = MOST_NODES) {
  const entering = Array.from(target.nodes, () => []);
  for (let edge = 0; edge < target.size; edge++) entering[target.destination[edge]].push(edge);
  const height = target.layers.length;
  let level = [{ node: target.target, depth: 0, parent: null, edge: -1, attention: 1, flow: 1 }];
  const grown = [...level];
  for (let depth = 1; depth <= height; depth++) {
    const layer = target.layers[height - depth];
    const next = [];
    for (const parent of level) {
      for (const edge of entering[parent.node]) {
        if (layer.present && !layer.present[edge]) continue;
        const attention = layer.weight[edge];
        next.push({ node: target.source[edge], depth, parent, edge, attention, flow: parent.flow * attention });
      }
    }
    level = next.sort((a, b) => b.flow - a.flow).slice(0, most);
    grown.push(...level);
  }
  return grown.sort((a, b) => b.flow - a.flow || a.depth - b.depth).slice(0, most).sort((a, b) => a.depth - b.depth);
}

/** How often each edge occurs among a tree's steps. */
export function occurrences(tree) {
  const times = new Map();
  for (const { edge } of tree) if (edge >= 0) times.set(edge, (times.get(edge) ?? 0) + 1);
  return times;
}

/** The tree as a scene: the root on top, one level of steps a layer. */
export function treeScene(content, target, tree, box, colors) {
  const height = target.layers.length;
  const across = spread(tree);
  const leaves = Math.max(...across) + 1;
  const [left, top] = [76, 56];
  const gap = (box.width - left - 30) / leaves;
  const rise = (box.height - top - 100) / height;
  const gaps = levelGaps(tree, across, height).map((least) => least * gap);
  const discs = tree.map((own, place) => ({
    node: own.node,
    step: place,
    fill: target.group ? groupColor(colors, content.groupRank(target.group[own.node])) : null,
    shape: content.groups?.shapes ? target.group?.[own.node] ?? 0 : 0,
    x: left + (across[place] + 0.5) * gap,
    y: top + own.depth * rise,
    r: own.depth === 0 ? 13 : Math.max(1.6, Math.min(12, 0.42 * gaps[own.depth])),
    isTarget: target.roots.includes(own.node),
    name: short(target.labels[own.node], 10),
    // The lowest names run downwards where they would be too small on their nodes.
    upright: own.depth === height && gaps[height] < 22 ? gaps[height] : 0,
  }));
  const placeOf = new Map(tree.map((own, place) => [own, place]));
  const times = occurrences(tree);
  const links = tree.slice(1).map((own, before) => {
    const [from, to] = [before + 1, placeOf.get(own.parent)];
    const thick = Math.min(1, discs[from].r / 6);
    return {
      edge: own.edge,
      step: from,
      factor: number(own.attention, 3),
      product: number(own.flow, 3),
      up: to - 1, // the step above, by its place among the steps; -1 at the root
      ...step(discs[from], discs[to]),
      ends: [from, to],
      width: Math.max(0.5, thick * (0.9 + 4 * own.attention)),
      stroke: colorOf(colors, own.attention),
      strength: own.attention,
      isLoop: target.source[own.edge] === target.destination[own.edge],
    };
  });
  const steps = [...links];
  links.sort((a, b) => a.strength - b.strength);
  // How often an edge occurs stands beside its step, where there is room for it.
  const marks = links.filter((link) => times.get(link.edge) > 1 && gaps[tree[link.step].depth] >= MARK_ROOM).map((link) => {
    const [x1, y1, x2, y2] = link.points;
    const turn = discs[link.step].r + (discs[link.step].isTarget ? 13 : 9); // beyond the ring of a target
    const part = turn / Math.max(Math.hypot(x2 - x1, y2 - y1), turn);
    return { x: x1 + (x2 - x1) * part + 4, y: y1 + (y2 - y1) * part + 3, text: `×${times.get(link.edge)}` };
  });
  const levels = target.layers.map((_, layer) => ({ x: 12, y: top + (height - layer - 0.5) * rise, text: `layer ${layer + 1}` }));
  return {
    discs,
    links,
    steps,
    marks,
    levels,
    truth: (link) => Boolean(target.truth?.[link.edge]),
    scale: { largest: 1, negative: false },
  };
}

/** By depth, how far apart the closest nodes stand; one that is alone has all the room it wants. */
function levelGaps(tree, across, height) {
  const places = Array.from({ length: height + 1 }, () => []);
  tree.forEach((own, place) => places[own.depth].push(across[place]));
  return places.map((level) => {
    level.sort((a, b) => a - b);
    return Math.min(99, ...level.slice(1).map((place, before) => place - level[before]));
  });
}

/** Where each occurrence stands from left to right: leaves one apart, others amid their own. */
function spread(tree) {
  const children = new Map(tree.map((own) => [own, []]));
  for (const own of tree) if (own.parent) children.get(own.parent).push(own);
  const place = new Map();
  let leaves = 0;
  const visit = (own) => {
    const below = children.get(own);
    below.forEach(visit);
    place.set(own, below.length === 0 ? leaves++ : (place.get(below[0]) + place.get(below.at(-1))) / 2);
  };
  visit(tree[0]);
  return tree.map((own) => place.get(own));
}
