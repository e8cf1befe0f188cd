// The network of the page: what it predicts for a target when some edges are reduced. `report/page/network.py` computes the same in Python,
// and has compared it with the model before it wrote the page.

import { unpack } from "./data.js";

const FUNCTIONS = {
  none: (x) => x,
  relu: (x) => Math.max(0, x),
  elu: (x) => (x > 0 ? x : Math.expm1(x)),
  leaky_relu: (x) => (x > 0 ? x : 0.01 * x),
  tanh: Math.tanh,
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  silu: (x) => x / (1 + Math.exp(-x)),
};

const unpackAll = (packed) => Object.fromEntries(Object.entries(packed).map(([name, values]) => [name, Float64Array.from(unpack(values))]));

export class Network {
  constructor(content) {
    Object.assign(this, content);
    this.layers = content.layers.map((layer) => ({ ...layer, weights: unpackAll(layer.weights) }));
    this.inputs = unpackAll(content.inputs);
    this.degree = unpack(content.degree);
  }

  /** The probabilities of all classes now, and with the edges of `cut` reduced. */
  answer(target, cut, protocol) {
    return { now: this.predict(target, [], protocol), then: this.predict(target, cut, protocol) };
  }

  /** The probabilities of all classes with some edges reduced, given by their places among the edges of the target. */
  predict(target, cut, protocol) {
    const size = target.inputs.length;
    const isCut = new Uint8Array(target.size);
    for (const edge of cut) isCut[edge] = 1;
    const edges = { size, isCut, source: target.source, destination: target.destination, degree: Array.from(target.inputs, (row) => this.degree[row]) };
    const rows = (table) => {
      if (!table) return null;
      const width = table.length / this.rows;
      const part = new Float64Array(size * width);
      target.inputs.forEach((row, node) => part.set(table.subarray(row * width, (row + 1) * width), node * width));
      return part;
    };
    let [left, right, x] = [rows(this.inputs.left), rows(this.inputs.right), null];
    this.layers.forEach((layer, number) => {
      if (number > 0) [left, right] = ["left", "right"].map((side) => project(layer.weights, side, x, size));
      x = output(layer, left, right, edges, protocol);
      if (number < this.activations.length) x = x.map(FUNCTIONS[this.activations[number]]);
    });
    const width = x.length / size;
    const logits = new Float64Array(width);
    const nodes = this.pooling ? [...Array(size).keys()] : [target.target];
    for (const node of nodes) for (let channel = 0; channel < width; channel++) logits[channel] += x[node * width + channel] / (this.pooling === "mean" ? size : 1);
    return softmax(this.binary ? [0, logits[0]] : Array.from(logits));
  }
}

/** The linear map of one side, for every node; null if the layer has none. */
function project(weights, side, x, size) {
  const matrix = weights[side];
  if (!matrix) return null;
  const across = x.length / size;
  const width = matrix.length / across;
  const bias = weights[`${side}_bias`];
  const projected = new Float64Array(size * width);
  for (let node = 0; node < size; node++) {
    for (let channel = 0; channel < width; channel++) {
      let sum = bias ? bias[channel] : 0;
      for (let place = 0; place < across; place++) sum += matrix[channel * across + place] * x[node * across + place];
      projected[node * width + channel] = sum;
    }
  }
  return projected;
}

/** The output of a layer for every node. */
function output(layer, left, right, { size, source, destination, isCut, degree }, protocol) {
  const width = left.length / size;
  const heads = layer.heads;
  const channels = width / heads;
  const removed = protocol === "removal";
  // The edges that the layer uses, and of each the factor of its message in each head.
  const used = Array.from(source.keys()).filter((edge) => (layer.loops || source[edge] !== destination[edge]) && !(removed && isCut[edge]));
  const factors = factorsOf[layer.kind](layer, left, right, used, { size, source, destination, isCut, degree }, protocol);
  const sums = new Float64Array(size * width);
  used.forEach((edge, place) => {
    for (let channel = 0; channel < width; channel++) {
      sums[destination[edge] * width + channel] += factors[place * heads + Math.floor(channel / channels)] * left[source[edge] * width + channel];
    }
  });
  const wide = layer.joins ? width : channels;
  const result = new Float64Array(size * wide);
  for (let node = 0; node < size; node++) {
    for (let channel = 0; channel < width; channel++) {
      result[node * wide + (layer.joins ? channel : channel % channels)] += sums[node * width + channel] / (layer.joins ? 1 : heads);
    }
    for (let channel = 0; channel < wide; channel++) {
      if (layer.weights.bias) result[node * wide + channel] += layer.weights.bias[channel];
      if (layer.kind === "sage" && right) result[node * wide + channel] += right[node * wide + channel];
    }
  }
  return result;
}

/** For each kind of layer: the factors of the messages, one an edge and head. */
const factorsOf = {
  gat: attention,
  gatv2: attention,
  gcn({ loops }, left, right, used, { source, destination, isCut, degree }, protocol) {
    const degrees = degree.map((count) => count + (loops ? 1 : 0));
    if (protocol === "removal") isCut.forEach((flag, edge) => { if (flag && source[edge] !== destination[edge]) degrees[destination[edge]] -= 1; });
    const scale = degrees.map((count) => (count > 0 ? count ** -0.5 : 0));
    return used.map((edge) => (isCut[edge] && protocol !== "coefficient" ? 0 : scale[source[edge]] * scale[destination[edge]]));
  },
  sage(layer, left, right, used, { size, destination, isCut }, protocol) {
    const counts = new Float64Array(size);
    for (const edge of used) counts[destination[edge]] += 1;
    return used.map((edge) => (isCut[edge] && protocol !== "coefficient" ? 0 : 1 / counts[destination[edge]]));
  },
};

/** The attention of each edge and head: a softmax over the edges that enter a node. */
function attention(layer, left, right, used, { size, source, destination, isCut }, protocol) {
  const { heads, slope, weights } = layer;
  const width = left.length / size;
  const channels = width / heads;
  const leaky = (value) => (value > 0 ? value : slope * value);
  const dot = (vector, table, node, head) => {
    let sum = 0;
    for (let channel = 0; channel < channels; channel++) sum += vector[head * channels + channel] * table[node * width + head * channels + channel];
    return sum;
  };
  const score = layer.kind === "gat"
    ? (from, to, head) => leaky(dot(weights.source, left, from, head) + dot(weights.destination, left, to, head))
    : (from, to, head) => {
      let sum = 0;
      for (let place = head * channels; place < (head + 1) * channels; place++) sum += weights.score[place] * leaky(left[from * width + place] + right[to * width + place]);
      return sum;
    };
  const scores = new Float64Array(used.length * heads);
  const highest = new Float64Array(size * heads).fill(-Infinity);
  used.forEach((edge, place) => {
    for (let head = 0; head < heads; head++) {
      const value = protocol === "coefficient" && isCut[edge] ? 0 : score(source[edge], destination[edge], head);
      scores[place * heads + head] = value;
      highest[destination[edge] * heads + head] = Math.max(highest[destination[edge] * heads + head], value);
    }
  });
  const totals = new Float64Array(size * heads);
  const each = (visit) => used.forEach((edge, place) => {
    for (let head = 0; head < heads; head++) visit(place * heads + head, destination[edge] * heads + head, edge);
  });
  each((place, at) => {
    scores[place] = Math.exp(scores[place] - highest[at]);
    totals[at] += scores[place];
  });
  each((place, at, edge) => { scores[place] = protocol === "weight" && isCut[edge] ? 0 : scores[place] / totals[at]; });
  return scores;
}

function softmax(logits) {
  const highest = Math.max(...logits);
  const shares = logits.map((value) => Math.exp(value - highest));
  const total = shares.reduce((sum, share) => sum + share, 0);
  return shares.map((share) => share / total);
}
