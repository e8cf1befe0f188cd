// The document that Python wrote, with a target's arrays unpacked when it is first looked at.

import { isolated, short } from "./format.js";

const KINDS = { f4: Float32Array, u1: Uint8Array, u2: Uint16Array, i4: Int32Array };

export function unpack(packed) {
  const [[kind, text]] = Object.entries(packed);
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new KINDS[kind](bytes.buffer);
}

const unpackAll = (object) => Object.fromEntries(Object.entries(object).map(([key, value]) => [key, unpack(value)]));

export class Content {
  #targets = new Map();

  constructor(content) {
    Object.assign(this, content);
    this.label = Object.fromEntries(content.methods.map((method) => [method.name, method.label]));
  }

  /** Whether what-if questions with several edges have an answer for this target: from a live model, or from the weights on this page. */
  answers(target) {
    return typeof this.live === "function" && (this.serves || Boolean(target.inputs));
  }

  /** The colour number of a group of nodes; -1 for nodes without a group. */
  groupRank(group) {
    return group < this.groups.names.length ? group : -1;
  }

  /** What a target is called in files and addresses. */
  targetId(target) {
    return Array.isArray(target.id) ? target.id.join("-") : target.id;
  }

  /** What a target is, in words. */
  get noun() {
    return NOUNS[this.kind] ?? "Graph";
  }

  /** What a node is called. */
  nodeName(id) {
    return this.nodeNames?.[id] || String(id);
  }

  /** What a class is called, in at most so many characters. */
  className(number, most = Infinity) {
    return isolated(short(this.classNames?.[number] || `class ${number}`, most));
  }

  /** What a target is called. */
  targetName(target) {
    if (target.name !== undefined && target.name !== null) return target.name;
    return this.kind === "node" ? this.nodeName(target.id) : String(target.id);
  }

  /** A target with its arrays. */
  target(position) {
    if (!this.#targets.has(position)) this.#targets.set(position, { ...this.#unpackTarget(this.targets[position]), place: position });
    return this.#targets.get(position);
  }

  #unpackTarget(raw) {
    const nodes = unpack(raw.nodes);
    const scale = (value) => (value / 65535) * 2 - 1;
    const layers = raw.layers?.map((layer) => ({
      weight: unpack(layer.weight),
      present: layer.present ? unpack(layer.present) : null,
    }));
    const target = {
      ...raw,
      nodes,
      x: Float64Array.from(unpack(raw.x), scale),
      y: Float64Array.from(unpack(raw.y), (value) => -scale(value)),
      hops: unpack(raw.hops),
      source: unpack(raw.source),
      destination: unpack(raw.destination),
      truth: raw.truth ? unpack(raw.truth) : null,
      scores: unpackAll(raw.scores),
      effects: Object.fromEntries(Object.entries(raw.effects).map(([name, effect]) => [name, unpackAll(effect)])),
      layers: layers ?? null,
      names: raw.names ?? Array.from(nodes, (id) => this.nodeName(id)),
      group: raw.group ? unpack(raw.group) : null,
      nodeScores: raw.nodeScores ? unpack(raw.nodeScores) : null,
      arcs: raw.arcs ? unpackAll(raw.arcs) : null,
      edges: raw.edges ? unpack(raw.edges) : null,
      inputs: raw.inputs ? unpack(raw.inputs) : null,
      roots: raw.roots ?? (raw.target >= 0 ? [raw.target] : []),
    };
    target.labels = this.#labels(target);
    const relation = raw.relation ? unpack(raw.relation) : null;
    target.relationName = (edge) => (relation ? this.relations[relation[edge]] : "");
    target.size = target.source.length;
    return target;
  }

  /** What stands on nodes in pictures: of "paper 18" the number, where shape and colour say that it is a paper. */
  #labels(target) {
    if (!this.groups?.shapes) return target.names;
    return target.names.map((name, node) => {
      const type = `${this.groups.names[target.group[node]]} `;
      return name.startsWith(type) && /^\d+$/.test(name.slice(type.length)) ? name.slice(type.length) : name;
    });
  }

  /** The values that a picture shows: a method's scores, or "effect": what reducing an edge does to the confidence. */
  values(target, shown, protocol) {
    return shown === EFFECT ? target.effects[protocol].pc : target.scores[shown];
  }

  /** What such values are called. */
  valuesLabel(shown, protocol) {
    return shown === EFFECT ? `${this.dropName} (${protocol})` : this.label[shown];
  }

  /** What falls when an edge that matters is reduced. */
  get dropName() {
    return this.predictsNumbers ? "drop of the number" : "drop of confidence";
  }
}

const NOUNS = { node: "Node", edge: "Link", graph: "Graph" };

/** What stands in the place of a method where the effect itself is shown. Methods' names are not empty. */
export const EFFECT = "";

/** The size of a value, for or against; what is undefined is smaller than all. */
export const size = (value) => (Number.isNaN(value) ? -1 : Math.abs(value));

/** Positions of values, the largest size first; what is undefined comes last. Equal sizes keep their order. */
export function ranking(values) {
  return Array.from(values.keys()).sort((a, b) => size(values[b]) - size(values[a]) || a - b);
}

/** Values between -1 and 1: 0 stays 0, the largest size becomes 1; `given` is that of several panels together. */
export function strengths(values, given = null) {
  let largest = given ?? 0;
  if (given === null) for (const value of values) if (Number.isFinite(value)) largest = Math.max(largest, Math.abs(value));
  return {
    largest,
    of: Float64Array.from(values, (value) => (Number.isFinite(value) && largest > 0 ? value / largest : 0)),
  };
}

/** The rank of one value, the one of the largest size being 1; equal sizes share theirs. */
export function rankOf(values, position) {
  const own = size(values[position]);
  if (own < 0) return values.length;
  let larger = 0;
  for (const value of values) if (size(value) > own) larger++;
  return larger + 1;
}
