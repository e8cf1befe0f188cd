// attree's explorer, MIT licence. Made from web/src by web/build.js; it holds no code of others.

// src/address.js
var PARTS = [
  ["method", null, String],
  ["beside", "nothing", String],
  ["protocol", null, String],
  ["view", "graph", String],
  ["strongest", 0, Number],
  ["edge", -1, Number],
  ["step", -1, Number],
  ["loops", true, flag],
  ["apart", false, flag],
  ["sized", false, flag],
  ["arcs", false, flag],
  ["columns", false, flag],
  ["scale", "own", String],
  ["sort", "telling", String],
  ["show", "all", String],
  ["find", "", String],
  ["theme", "", String]
];
function flag(text) {
  return text === "true";
}
function toText(content, state) {
  const asked = new URLSearchParams({ target: content.targetId(content.targets[state.target]) });
  for (const [key, first] of PARTS) {
    if (first === null || state[key] !== void 0 && state[key] !== first) asked.set(key, state[key] === Infinity ? "all" : state[key]);
  }
  if (state.cut.length > 0) asked.set("cut", state.cut.join(","));
  return String(asked);
}
function fromText(content, text) {
  const asked = new URLSearchParams(text);
  const state = {};
  const place2 = content.targets.findIndex((target) => String(content.targetId(target)) === asked.get("target"));
  if (place2 >= 0) state.target = place2;
  for (const [key, , read] of PARTS) {
    if (asked.has(key)) state[key] = asked.get(key) === "all" && read === Number ? Infinity : read(asked.get(key));
  }
  const methods = content.methods.map(({ name }) => name);
  const protocols = content.protocols.map(({ name }) => name);
  const known2 = {
    method: methods,
    protocol: protocols,
    beside: ["nothing", ...methods, ...protocols.length > 0 ? [""] : []],
    view: ["graph", "tree"],
    scale: ["own", "shared"],
    theme: ["light", "dark"]
  };
  for (const [key, values] of Object.entries(known2)) if (key in state && !values.includes(state[key])) delete state[key];
  const size2 = place2 >= 0 ? content.target(place2).size : 0;
  const whole2 = (value, least, most) => Number.isInteger(value) && value >= least && value < most;
  for (const key of ["edge", "step"]) if (key in state && !whole2(state[key], -1, key === "edge" ? size2 : 1e6)) delete state[key];
  if ("strongest" in state && !(state.strongest === Infinity || whole2(state.strongest, 1, 1e6))) delete state.strongest;
  const cut = (asked.get("cut") ?? "").split(",").filter(Boolean).map(Number);
  state.cut = cut.every((edge) => whole2(edge, 0, size2)) ? [...new Set(cut)] : [];
  return state;
}

// src/dom.js
var SVG = "http://www.w3.org/2000/svg";
function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === void 0 || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== void 0 && child !== ""));
  return element;
}
function select(label, groups, value, change) {
  const option = ([key, text]) => h("option", { value: key, selected: key === value }, text);
  const entries = groups.map(
    (group) => Array.isArray(group[1]) ? h("optgroup", { label: group[0] }, group[1].map(option)) : option(group)
  );
  const control = h("select", { change: () => change(control.value) }, entries);
  return { element: h("label", { class: "field" }, h("span", {}, label), control), control };
}

// src/format.js
function number(value, digits = 4) {
  if (value === null || value === void 0 || Number.isNaN(value)) return "undefined";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size2 = Math.abs(value);
  const text = size2 >= 1e-4 && size2 < 1e6 ? String(Number(value.toPrecision(digits))) : value.toExponential(2);
  return text.replace("-", "−").replace("e−", "e-").replace("e+", "e");
}
function fixed(value, digits = 4) {
  return typeof value === "number" && Number.isFinite(value) ? value.toFixed(digits).replace("-", "−") : number(value);
}
var NOISE = 1e-7;
function signed(value) {
  if (value !== 0 && Math.abs(value) < NOISE) return "≈ 0";
  return value > 0 ? `+${number(value, 3)}` : number(value, 3);
}
function percent(share) {
  if (share === null || share === void 0 || Number.isNaN(share)) return "undefined";
  const value = share * 100;
  const [low, high] = [Math.min(value, 100 - value), Math.abs(value)];
  const digits = low >= 1 || value === 0 || value === 100 ? 0 : low >= 0.1 ? 1 : 2;
  if (high < 5e-3) return share > 0 ? "<0.01 %" : "0 %";
  if (value > 99.995 && value < 100) return ">99.99 %";
  return `${value.toFixed(digits)} %`;
}
function whole(value) {
  return Math.round(value).toLocaleString("en");
}
function count(value, noun) {
  return `${whole(value)} ${noun}${value === 1 ? "" : "s"}`;
}
function short(text, most) {
  const characters = Array.from(text);
  if (characters.length <= most) return text;
  const end = Math.floor((most - 1) / 3);
  return `${characters.slice(0, most - 1 - end).join("")}…${end > 0 ? characters.slice(-end).join("") : ""}`;
}
var TURNS = /[\u0590-\u08ff\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufefc]/;
function isolated(name) {
  return TURNS.test(name) ? `⁨${name}⁩` : name;
}

// src/palette.js
var LIGHT = {
  name: "light",
  paper: "#ffffff",
  ink: "#222222",
  muted: "#5f6368",
  faint: "#d9d9d9",
  node: "#ffffff",
  rim: "#7a7f86",
  target: "#e69f00",
  onTarget: "#222222",
  truth: "#0072b2",
  chosen: "#111111",
  rising: ["#cfcfcf", "#f0a070", "#d55e00", "#5c1a00"],
  falling: ["#cfcfcf", "#7fc9b4", "#009e73", "#00402f"],
  groups: ["#9ed1f0", "#f7dc8c", "#b5e0b8", "#e9b8d6", "#c9bdf2", "#d9d2bd", "#a9dedb", "#c3ccd6"],
  other: "#eceef0"
};
var DARK = {
  name: "dark",
  paper: "#15181d",
  ink: "#e8eaed",
  muted: "#a2a9b3",
  faint: "#343a43",
  node: "#23282f",
  rim: "#8a929d",
  target: "#e69f00",
  onTarget: "#15181d",
  truth: "#56b4e9",
  chosen: "#ffffff",
  rising: ["#3a4048", "#8f4312", "#f0803c", "#ffe3c2"],
  falling: ["#3a4048", "#0b6e54", "#2fc79b", "#d3fff0"],
  groups: ["#1d5a80", "#6f5a12", "#2b5f38", "#7a3a63", "#52459b", "#5d5541", "#1b6460", "#4b5764"],
  other: "#2a3037"
};
var palette = (theme) => theme === "dark" ? DARK : LIGHT;
var channels = (color) => [1, 3, 5].map((start) => Number.parseInt(color.slice(start, start + 2), 16));
function colorOf(colors, strength) {
  const stops = strength < 0 ? colors.falling : colors.rising;
  const place2 = Math.min(1, Math.abs(strength)) * (stops.length - 1);
  const low = Math.min(Math.floor(place2), stops.length - 2);
  const [from, to] = [channels(stops[low]), channels(stops[low + 1])];
  return `rgb(${from.map((value, channel) => Math.round(value + (place2 - low) * (to[channel] - value))).join(",")})`;
}
var groupColor = (colors, rank) => colors.groups[rank] ?? colors.other;
function standingOut(colors, color) {
  const [paper, ink] = [channels(colors.paper), channels(colors.ink)];
  let own = channels(color);
  if (luminance(own) < 1e-3 && contrast(own, paper) < 3) return `rgb(${ink.join(",")})`;
  for (let step2 = 0; step2 < 20 && contrast(own, paper) < 3; step2 += 1) {
    own = own.map((value, channel) => value + 0.1 * (ink[channel] - value));
  }
  return `rgb(${own.map(Math.round).join(",")})`;
}
function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}
function luminance(color) {
  const [red, green, blue] = color.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
function ambientTheme() {
  const notebook = document.body.dataset.jpThemeLight;
  if (notebook) return notebook === "true" ? "light" : "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// src/curves.js
var LABELS = { acc: "accuracy", auc: "AUC", within_pearson: "within targets, Pearson", truth_auroc: "ground truth, AUROC", loss: "loss" };
var DASHES = [null, "6 2.5", "2 2.5", "9 2.5 2 2.5"];
var PROTOCOLS = ["removal", "weight", "coefficient"];
var SIZE = { width: 230, height: 130, left: 34, right: 8, top: 8, bottom: 20 };
function curvePanels(content, colors) {
  const panels = /* @__PURE__ */ new Map();
  const dash = dashes(content.methods);
  const known2 = content.curves.map((curve) => ({ ...describe(content, curve.name), points: curve.points.filter(([, value]) => value !== null) })).filter(({ points }) => points.length > 0);
  for (const curve of known2.sort((a, b) => byProtocol(a.protocol, b.protocol) || a.method - b.method)) {
    panels.set(curve.panel, [...panels.get(curve.panel) ?? [], { ...curve, dash: dash[curve.method] }]);
  }
  if (panels.size === 0) return null;
  const steps = [...panels.values()].flat().flatMap((curve) => curve.points.map(([step2]) => step2));
  const range = [Math.min(...steps), Math.max(...steps)];
  const kinds = Object.keys(LABELS);
  const place2 = ([, [first]]) => kinds.includes(first.kind) ? kinds.indexOf(first.kind) : kinds.length;
  const sorted = [...panels].sort((a, b) => place2(a) - place2(b));
  const open = Math.max(2, sorted.filter((entry) => place2(entry) < kinds.length).length);
  const values = (curves) => curves.flatMap((curve) => curve.points.map(([, value]) => value));
  const alike = (kind) => sorted.flatMap(([, curves]) => curves[0].kind === kind ? values(curves) : []);
  const drawn = sorted.map(([title, curves]) => {
    const all = alike(curves[0].kind);
    return new Panel(title, curves, range, [Math.min(...all), Math.max(...all)], colors).element;
  });
  const rest = drawn.slice(open);
  return h(
    "div",
    { class: "curves" },
    h("div", { class: "panels" }, drawn.slice(0, open)),
    rest.length > 0 ? h("details", {}, h("summary", {}, `${rest.length} more`), h("div", { class: "panels" }, rest)) : null
  );
}
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
function byProtocol(a, b) {
  const place2 = (name) => PROTOCOLS.includes(name) ? PROTOCOLS.indexOf(name) : PROTOCOLS.length;
  return a === b ? 0 : place2(a) - place2(b) || (a < b ? -1 : 1);
}
function dashes(methods) {
  const taken = /* @__PURE__ */ new Set();
  return methods.map(({ color }, place2) => {
    const tries = DASHES.map((_, step2) => DASHES[(place2 + step2) % DASHES.length]);
    const dash = tries.find((one) => !taken.has(`${color} ${one}`)) ?? tries[0];
    taken.add(`${color} ${dash}`);
    return dash;
  });
}
var Panel = class {
  constructor(title, curves, range, [low, high], colors) {
    this.curves = curves.map((curve, place2) => ({
      ...curve,
      dash: curve.method < 0 ? DASHES[place2 % DASHES.length] : curve.dash,
      color: curve.hue ? standingOut(colors, curve.hue) : colors.ink
    }));
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    const across = SIZE.width - SIZE.left - SIZE.right;
    const up = SIZE.height - SIZE.top - SIZE.bottom;
    this.x = (step2) => SIZE.left + (step2 - range[0]) / (range[1] - range[0] || 1) * across;
    this.y = (value) => SIZE.top + (1 - (value - low + room) / (high - low + 2 * room)) * up;
    this.colors = colors;
    const last = this.curves.map((curve) => `${curve.label} ${number(curve.points.at(-1)[1])}`).join(", ");
    this.cursor = s("line", { y1: SIZE.top, y2: SIZE.height - SIZE.bottom, stroke: colors.muted, visibility: "hidden" });
    this.legend = h("ul", { class: "legend" });
    const svg = s("svg", {
      role: "img",
      viewBox: `0 0 ${SIZE.width} ${SIZE.height}`,
      "aria-label": `${title} while training; at the end: ${last}`
    }, this.#axes(low, high, range), this.cursor, this.curves.map((curve) => this.#line(curve)));
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect();
      const part = ((event.clientX - frame.left) / frame.width * SIZE.width - SIZE.left) / across;
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
      parts.push(
        s("line", { x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: y, y2: y, stroke: this.colors.faint }),
        text(SIZE.left - 6, y + 4, "end", number(value))
      );
    }
    parts.push(text(SIZE.left, SIZE.height - 8, "start", whole(range[0])), text(SIZE.width - SIZE.right, SIZE.height - 8, "end", `step ${whole(range[1])}`));
    return s("g", {}, parts);
  }
  #line(curve) {
    const points = curve.points.map(([step2, value]) => `${this.x(step2).toFixed(1)},${this.y(value).toFixed(1)}`);
    const [x, y] = points.at(-1).split(",");
    return s(
      "g",
      {},
      s("polyline", { points: points.join(" "), fill: "none", stroke: curve.color, "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": curve.dash }),
      s("circle", { cx: x, cy: y, r: 3, fill: curve.color })
    );
  }
  /** Show the values at a step, or those at the end. */
  #read(step2) {
    const nearest = (points) => step2 === null ? points.at(-1) : points.reduce((best, point) => Math.abs(point[0] - step2) < Math.abs(best[0] - step2) ? point : best);
    const found = this.curves.map((curve) => nearest(curve.points));
    this.legend.replaceChildren(...this.curves.map((curve, place2) => {
      const swatch2 = s("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: curve.color, "stroke-width": 2.5, "stroke-dasharray": curve.dash });
      return h("li", {}, s("svg", { class: "sample", viewBox: "0 0 22 8", "aria-hidden": "true" }, swatch2), curve.label, h("b", {}, number(found[place2][1])));
    }));
    if (step2 === null) return this.cursor.setAttribute("visibility", "hidden");
    const at2 = this.x(found[0][0]);
    this.cursor.setAttribute("visibility", "visible");
    this.cursor.setAttribute("x1", at2);
    this.cursor.setAttribute("x2", at2);
    return void 0;
  }
};
function ticks(low, high, parts = 3) {
  const rough = (high - low) / parts || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = power * ([1, 2, 5, 10].find((one) => one * power >= rough * 0.999) ?? 10);
  const found = [];
  for (let value = Math.ceil(low / unit) * unit; value <= high + unit * 1e-9; value += unit) found.push(Math.round(value / unit) * unit);
  return found.length > 0 ? found : [low];
}

// src/data.js
var KINDS = { f4: Float32Array, u1: Uint8Array, u2: Uint16Array, i4: Int32Array };
function unpack(packed) {
  const [[kind, text]] = Object.entries(packed);
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new KINDS[kind](bytes.buffer);
}
var unpackAll = (object) => Object.fromEntries(Object.entries(object).map(([key, value]) => [key, unpack(value)]));
var Content = class {
  #targets = /* @__PURE__ */ new Map();
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
  className(number2, most = Infinity) {
    return isolated(short(this.classNames?.[number2] || `class ${number2}`, most));
  }
  /** What a target is called. */
  targetName(target) {
    if (target.name !== void 0 && target.name !== null) return target.name;
    return this.kind === "node" ? this.nodeName(target.id) : String(target.id);
  }
  /** A target with its arrays. */
  target(position) {
    if (!this.#targets.has(position)) this.#targets.set(position, { ...this.#unpackTarget(this.targets[position]), place: position });
    return this.#targets.get(position);
  }
  #unpackTarget(raw) {
    const nodes = unpack(raw.nodes);
    const scale = (value) => value / 65535 * 2 - 1;
    const layers = raw.layers?.map((layer) => ({
      weight: unpack(layer.weight),
      present: layer.present ? unpack(layer.present) : null
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
      roots: raw.roots ?? (raw.target >= 0 ? [raw.target] : [])
    };
    target.labels = this.#labels(target);
    const relation = raw.relation ? unpack(raw.relation) : null;
    target.relationName = (edge) => relation ? this.relations[relation[edge]] : "";
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
};
var NOUNS = { node: "Node", edge: "Link", graph: "Graph" };
var EFFECT = "";
var size = (value) => Number.isNaN(value) ? -1 : Math.abs(value);
function ranking(values) {
  return Array.from(values.keys()).sort((a, b) => size(values[b]) - size(values[a]) || a - b);
}
function strengths(values, given = null) {
  let largest = given ?? 0;
  if (given === null) {
    for (const value of values) if (Number.isFinite(value)) largest = Math.max(largest, Math.abs(value));
  }
  return {
    largest,
    of: Float64Array.from(values, (value) => Number.isFinite(value) && largest > 0 ? value / largest : 0)
  };
}
function rankOf(values, position) {
  const own = size(values[position]);
  if (own < 0) return values.length;
  let larger = 0;
  for (const value of values) if (size(value) > own) larger++;
  return larger + 1;
}

// src/glossary.js
var WORDS = {
  method: ["Method", "A way to give every edge a score: how much it contributed to this prediction. GAtt multiplies attention along the paths that lead to the target and adds the paths up; AvgAtt averages attention over layers; Uniform is GAtt with all neighbours weighed alike; Random is chance. Exact effects (occlusion) are measured by taking edges out."],
  compare: ["Compare with", "Draws a second picture of the same edges: by another method, or by what really happens when an edge is reduced. Where the two agree, the method tells the truth about this prediction."],
  protocol: ["Reduce an edge by", "What “taking an edge away” means."],
  strongest: ["Strongest edges", "Draws only the edges with the largest scores, for or against the prediction. The table lists what is drawn."],
  pc: ["drop of confidence (ΔPC)", "By how much the probability of the predicted class falls when this edge is reduced. 0.30 means: from 90 % to 60 %, say. Negative, in green: the network becomes surer without the edge, so the edge speaks against the prediction."],
  drop: ["drop of the number", "By how much the predicted number falls when this edge is reduced. Negative, in green: the number rises without the edge."],
  ne: ["loss of certainty (ΔNE)", "By how much the entropy of all class probabilities rises when this edge is reduced. Positive: the prediction becomes less certain; negative: more certain."],
  then: ["prediction then", "The predicted class and its probability with this edge reduced. Changed classes are in colour."],
  truth: ["true explanation", "Edges that are known to cause the label, because the data was made that way. A good method gives them the highest scores."],
  confidence: ["confidence, Pearson", "How well a method's scores follow the drop of confidence when each edge is reduced (Pearson's correlation). 1 is perfect, 0 is chance. It is over the edges of all targets together, and stands here where the statistic within targets is undefined."],
  within: ["within targets, Pearson", "How well a method's scores follow the effects of the edges of one prediction: Pearson's correlation for each target, then the mean over targets. 1 is perfect, 0 is chance."],
  faithfulness: ["faithfulness (mean)", "How well a method's scores predict the effect of reducing each edge: the mean of seven statistics (three correlations with the drop of confidence, three with the loss of certainty, one AUROC for changed predictions). 1 is perfect, 0 is chance for the correlations."],
  auroc: ["ground truth, AUROC", "The chance that a true edge gets a higher score than another edge. 1 is perfect, 0.5 is chance."],
  interval: ["intervals", "95 % intervals: with other targets of the same kind the number would mostly fall within. Two methods whose intervals overlap widely may be equally good."],
  undefined: ["undefined", "The statistic does not exist here: no prediction changed, or all scores are equal. It is not zero."],
  tree: ["computation tree", "Everything the network computes for the target: the target on top, below it what it attended to in the last layer, and so on down to the inputs. The same node may occur many times. The attention along a path multiplies; GAtt of an edge is the sum over its occurrences."],
  whatif: ["What if?", "What the network predicts when edges are reduced. The effect of each single edge was measured. For several edges at once the network runs again: in this page, if it holds the weights of a small network, else with attree serve."]
};
function term(word, extra = []) {
  const [name, meaning] = WORDS[word];
  const note = h("div", { class: "note" }, h("p", {}, meaning), extra.map((text) => h("p", {}, text)));
  const details = h("details", {
    class: "term",
    toggle: () => {
      if (!details.open) return;
      note.style.marginLeft = "0px";
      const over = note.getBoundingClientRect().right - document.documentElement.clientWidth + 8;
      if (over > 0) note.style.marginLeft = `${-over}px`;
    },
    keydown: (event) => {
      if (event.key !== "Escape" || !details.open) return;
      details.open = false;
      details.firstChild.focus();
    },
    focusout: (event) => {
      if (!details.contains(event.relatedTarget)) details.open = false;
    }
  }, h("summary", { "aria-label": `What is meant by ${name}?` }, "?"), note);
  return details;
}
function guide(content) {
  const { kind } = content;
  const has = { tree: content.targets.some((target) => target.layers), truth: content.targets.some((target) => target.truth) };
  const steps = [
    `Pick a ${NAMES[kind] ?? "graph"} on the left. The list begins with those that are easiest to check: predicted right, small, and sure.`,
    `The picture shows the part of the graph that the network looked at. ${ROOTS[kind] ?? ""} An arrow runs the way information flows; the thicker and darker it is, the more the method says it mattered. Where scores have a sign, red edges speak for the prediction and green ones against it.`,
    content.protocols.length > 0 ? `Compare the picture with what really happens: choose “${content.dropName}” under “Compare with”. A method to trust draws the same arrows thick.` : null,
    has.truth ? "Edges with a blue halo are known to be the true explanation." : null,
    "Click an edge, here or in the table, to see every number about it and what the network predicts without it.",
    has.tree ? "The computation tree shows why an edge has its score: the products of attention along all paths through it." : null
  ];
  const left = /* @__PURE__ */ new Set([...has.tree ? [] : ["tree"], ...has.truth ? [] : ["truth", "auroc"]]);
  if (content.protocols.length === 0) for (const word of ["pc", "ne", "then", "protocol", "whatif", "faithfulness", "within"]) left.add(word);
  if (!content.metrics.some((metric) => metric.interval)) left.add("interval");
  left.add("confidence");
  for (const word of content.predictsNumbers ? ["pc", "ne", "then", "faithfulness"] : ["drop"]) left.add(word);
  const words = Object.entries(WORDS).filter(([word]) => !left.has(word));
  return h(
    "details",
    { class: "guide" },
    h("summary", {}, "How to read this page"),
    h("ol", {}, steps.filter(Boolean).map((step2) => h("li", {}, step2))),
    h(
      "dl",
      {},
      words.map(([, [name, meaning]]) => h("div", {}, h("dt", {}, name), h("dd", {}, meaning))),
      content.protocols.filter(({ meaning }) => meaning).map(({ name, meaning }) => h("div", {}, h("dt", {}, `reduced by ${name}`), h("dd", {}, meaning)))
    ),
    h("p", { class: "notes" }, "Keys on the picture: arrows go from edge to edge, Page Up and Down to other targets, + and − zoom, 0 fits, Escape lets go.")
  );
}
var NAMES = { node: "node", edge: "link" };
var ROOTS = {
  node: "The ringed node is the one whose prediction is explained.",
  edge: "The two ringed nodes are the link whose prediction is explained.",
  graph: "The whole graph is what the prediction is about."
};

// src/what_if.js
var MOST_CLASSES = 6;
var LONGEST = 40;
var WhatIf = class {
  #asked = 0;
  #answers = /* @__PURE__ */ new Map();
  /** `toggle(edge)` takes an edge out or puts it back, `clear()` puts all back. */
  constructor(content, { toggle, clear }) {
    this.content = content;
    this.toggle = toggle;
    this.clear = clear;
    this.element = h("section", { class: "what-if", "aria-label": "What if" });
  }
  /** Say what the prediction is without the edges of `cut`; while there are none, which edge matters most. */
  async show(target, cut, protocol) {
    const { content } = this;
    const asked = ++this.#asked;
    this.element.hidden = content.protocols.length === 0;
    if (this.element.hidden) return;
    const body = h("div", { class: "answer", role: "status" });
    if (cut.length === 0) {
      this.element.replaceChildren(body, h("p", { class: "notes" }, this.#hint(target), term("whatif")));
      body.replaceChildren(...this.#strongest(target, protocol));
      return;
    }
    const back = (edge) => h(
      "button",
      { type: "button", class: "chip", "aria-label": `Put ${edgeName(target, edge)} back`, click: () => this.toggle(edge) },
      edgeName(target, edge),
      h("span", { "aria-hidden": "true" }, " ×")
    );
    this.element.replaceChildren(body, h(
      "ul",
      { class: "chips", "aria-label": "Edges taken out" },
      cut.map((edge) => h("li", {}, back(edge))),
      cut.length > 1 ? h("li", {}, h("button", { type: "button", click: this.clear }, "Put all back")) : null
    ));
    let answer = known(content, target, cut, protocol);
    if (content.answers(target)) {
      const key = JSON.stringify([target.place, protocol, [...cut].sort((a, b) => a - b)]);
      if (!this.#answers.has(key)) {
        body.replaceChildren(h("p", { class: "notes" }, "asking the network …"));
        this.#answers.set(key, content.live(target, cut, protocol));
      }
      try {
        answer = await this.#answers.get(key);
      } catch (error) {
        this.#answers.delete(key);
        answer = { error: String(error.message ?? error) };
      }
    }
    if (asked !== this.#asked) return;
    if (answer.error) return body.replaceChildren(h("p", { class: "wrong" }, answer.error));
    body.replaceChildren(
      h("p", { class: "sentence" }, sentence(content, target, cut, protocol, answer)),
      answer.now && answer.then ? this.#classes(answer) : ""
    );
  }
  #hint(target) {
    const { content } = this;
    if (!content.answers(target)) return `Click an edge and take it out. Several at once: attree serve. ${content.withoutNetwork ?? ""}`;
    return `Click edges and take them out, as many as you like: ${content.serves ? "the network itself answers" : "this page holds the network's weights and computes the answer"}.`;
  }
  /** The edge with the largest effect. */
  #strongest(target, protocol) {
    const effects = target.effects[protocol].pc;
    const largest = effects.reduce((best, effect, edge) => Math.abs(effect) > Math.abs(effects[best]) ? edge : best, 0);
    if (!effects[largest]) return [h("p", { class: "sentence" }, `No single edge changes this prediction${reducedBy(protocol)}.`)];
    return [h(
      "p",
      { class: "sentence" },
      sentence(this.content, target, [largest], protocol, known(this.content, target, [largest], protocol)),
      " ",
      h("button", { type: "button", "aria-label": `Take ${edgeName(target, largest)} out`, click: () => this.toggle(largest) }, "Take it out")
    )];
  }
  /** Now and then of the classes that matter, as bars. */
  #classes({ now, then }) {
    const order = [...now.keys()].sort((a, b) => Math.max(now[b], then[b]) - Math.max(now[a], then[a])).slice(0, MOST_CLASSES);
    const bar = (share, kind) => {
      const cell2 = h("td", { class: `share ${kind}` }, percent(share));
      cell2.style.setProperty("--bar", `${Math.round(share * 100)}%`);
      return cell2;
    };
    return h(
      "table",
      { class: "classes" },
      h("thead", {}, h("tr", {}, ["class", "now", "then"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, order.map((place2) => h(
        "tr",
        { "data-class": place2 },
        h("th", { scope: "row" }, this.content.className(place2)),
        bar(now[place2], "now"),
        bar(then[place2], "then")
      )))
    );
  }
};
function edgeName(target, edge, most = Infinity) {
  const name = (node) => isolated(short(target.names[node], most));
  return `${name(target.source[edge])} → ${name(target.destination[edge])}`;
}
function edgeWords(target, edge) {
  const isLoop = target.source[edge] === target.destination[edge];
  return isLoop ? `the self-loop of ${isolated(short(target.names[target.source[edge]], LONGEST))}` : edgeName(target, edge, LONGEST);
}
var reducedBy = (protocol) => protocol === "removal" ? "" : ` (reduced by ${protocol})`;
function known(content, target, cut, protocol) {
  const effect = target.effects[protocol];
  if (cut.length !== 1) return { error: "This page does not know it." };
  const [edge] = cut;
  const changed = Boolean(effect.changed[edge]);
  const answer = { changed, drop: effect.pc[edge] };
  if (effect.after) Object.assign(answer, { class: effect.after[edge], share: effect.confidence[edge] });
  else if (!changed && target.predicted !== void 0) {
    Object.assign(answer, { class: target.predicted, share: Math.max(0, target.confidence - effect.pc[edge]) });
  }
  return answer;
}
function sentence(content, target, cut, protocol, answer) {
  const without = `Without ${cut.length === 1 ? edgeWords(target, cut[0]) : `these ${cut.length} edges`}${reducedBy(protocol)}`;
  const now = target.predicted === void 0 ? "" : `The network predicts ${content.className(target.predicted)} (${percent(target.confidence)}). `;
  if (answer.value !== void 0) return `The network predicts ${number(answer.value[0])}. ${without} it would predict ${number(answer.value[1])}.`;
  const moves = (drop) => `${drop < 0 ? "rises" : "falls"} by ${number(Math.abs(drop), 3)}`;
  if (content.predictsNumbers) return `${without} the predicted number ${moves(answer.drop)}.`;
  const after = answer.then ? answer.then.indexOf(Math.max(...answer.then)) : answer.class;
  const share = answer.then ? answer.then[after] : answer.share;
  const changed = answer.then ? after !== answer.now.indexOf(Math.max(...answer.now)) : answer.changed;
  if (after === void 0) {
    const then = target.predicted === void 0 ? `the confidence ${moves(answer.drop)}` : `${content.className(target.predicted)} has ${percent(Math.max(0, target.confidence - answer.drop))} then`;
    return `${now}${without} it would predict ${changed ? "another class" : "the same"}; ${then}.`;
  }
  return `${now}${without} it would ${changed ? `predict ${content.className(after)}` : "still predict the same"} (${percent(share)}).`;
}

// src/edge_card.js
function edgeCard(content, target, edge, tree, protocol) {
  const [from, to] = [target.source[edge], target.destination[edge]];
  const answer = protocol ? known(content, target, [edge], protocol) : null;
  return [
    h("h3", {}, edgeName(target, edge)),
    h("p", { class: "notes" }, notes(target, edge, from, to, protocol).join(" · ")),
    answer ? h("p", { class: "sentence" }, sentence(content, target, [edge], protocol, answer)) : null,
    scoresTable(content, target, edge),
    content.protocols.length > 0 ? effectsTable(content, target, edge) : null,
    tree ? flows(target, edge, tree) : null
  ].filter(Boolean);
}
function notes(target, edge, from, to, protocol) {
  const found = [];
  if (target.relationName(edge)) found.push(target.relationName(edge));
  if (from === to) found.push("self-loop");
  if (target.truth?.[edge]) found.push("true explanation");
  const pc = protocol && target.effects[protocol].pc[edge];
  if (pc) found.push(pc > 0 ? "speaks for the prediction" : "speaks against the prediction");
  if (target.hops[to] !== 255) found.push(target.hops[to] === 0 ? "enters the target" : `${count(target.hops[to], "hop")} from the target`);
  return found.length ? found : ["edge"];
}
function scoresTable(content, target, edge) {
  const rows = content.methods.map(({ name, label }) => {
    const values = target.scores[name];
    const rank = rankOf(values, edge);
    return h(
      "tr",
      { "data-method": name },
      h("th", { scope: "row" }, label),
      h("td", { class: "value" }, number(values[edge])),
      h("td", { class: "rank" }, `${whole(rank)} of ${whole(target.size)}${target.leftOut ? " kept" : ""}`)
    );
  });
  return h("table", {}, h("thead", {}, row("th", "method", "score", "rank")), h("tbody", {}, rows));
}
function effectsTable(content, target, edge) {
  const rows = content.protocols.map(({ name }) => {
    const effect = target.effects[name];
    return h(
      "tr",
      { "data-protocol": name },
      h("th", { scope: "row" }, name),
      h("td", { class: effect.pc[edge] < 0 ? "pc against" : "pc" }, signed(effect.pc[edge])),
      content.predictsNumbers ? null : [
        h("td", { class: "ne" }, signed(effect.ne[edge])),
        h("td", { class: effect.changed[edge] ? "after changed" : "after" }, afterwards(content, target, effect, edge))
      ]
    );
  });
  const known2 = target.predicted !== void 0;
  const before = known2 ? [h("small", {}, ` now ${content.className(target.predicted)} ${percent(target.confidence)}`)] : [];
  return h(
    "table",
    {},
    h("caption", {}, "what reducing it does", before),
    h("thead", {}, row("th", "reduced by", content.dropName, ...content.predictsNumbers ? [] : ["loss of certainty", "prediction then"])),
    h("tbody", {}, rows)
  );
}
function nodeCard(content, target, node, values, visible, label) {
  const found = [];
  if (target.names[node] !== String(target.nodes[node])) found.push(`number ${target.nodes[node]}`);
  const group = target.group?.[node];
  if (group !== void 0 && content.groups.names[group] !== void 0) found.push(`${content.groups.meaning}: ${content.groups.names[group]}`);
  if (target.roots.includes(node)) found.push("what is explained");
  else if (target.hops[node] !== 255) found.push(`${count(target.hops[node], "step")} to the target`);
  const own = (ends) => Array.from(ends.keys()).filter((edge) => visible[edge] && ends[edge] === node).sort((a, b) => size(values[b]) - size(values[a]));
  const [into, out] = [own(target.destination), own(target.source)];
  const rows = (title, edges) => edges.length === 0 ? [] : [
    h(
      "tr",
      {},
      h("th", { scope: "row" }, `${title} (${whole(edges.length)}), strongest`),
      h("td", {}, `${edgeName(target, edges[0])} ${number(values[edges[0]], 3)}`)
    )
  ];
  return [
    h("h3", {}, target.names[node]),
    h("p", { class: "notes" }, found.join(" · ")),
    h("table", {}, h("caption", {}, `by ${label}`), h("tbody", {}, rows("edges in", into), rows("edges out", out)))
  ];
}
function afterwards(content, target, effect, edge, most = Infinity) {
  const changed = Boolean(effect.changed[edge]);
  if (effect.after) return `${content.className(effect.after[edge], most)} ${percent(effect.confidence[edge])}`;
  if (target.predicted === void 0) return changed ? "another class" : "the same class";
  const still = `${content.className(target.predicted, most)} ${percent(Math.max(0, target.confidence - effect.pc[edge]))}`;
  return changed ? `another class (${still})` : still;
}
function flows(target, edge, tree) {
  const own = tree.filter((step2) => step2.edge === edge);
  if (own.length === 0) return h("p", { class: "notes" }, "not in the part of the tree that is drawn");
  const terms = own.slice(0, 4).map((step2) => {
    const factors = [];
    for (let at2 = step2; at2.parent; at2 = at2.parent) factors.push(number(at2.attention));
    return factors.join(" · ");
  });
  const rest = own.length > terms.length ? [`${own.length - terms.length} more`] : [];
  const sum = own.reduce((total, step2) => total + step2.flow, 0);
  const part = tree.length < target.treeSize ? " of the part that is drawn" : "";
  return h(
    "div",
    { class: "flows" },
    h("p", {}, `${count(own.length, "time")} in the tree${part}; attention along the ways to the root:`),
    h("p", { class: "sum" }, `${[...terms, ...rest].join(" + ")} = ${number(sum)}`)
  );
}
function edgeSentence(content, target, edge, method, protocol) {
  const [from, to] = [target.names[target.source[edge]], target.names[target.destination[edge]]];
  const values = target.scores[method];
  const rank = rankOf(values, edge);
  const parts = [`Edge from ${from} to ${to}.`, `${content.label[method]} ${number(values[edge])}, rank ${rank} of ${target.size}.`];
  if (target.truth?.[edge]) parts.push("A true explanation.");
  if (protocol) {
    const effect = target.effects[protocol];
    parts.push(content.predictsNumbers ? `Reducing it by ${protocol}: the predicted number changes by ${number(-effect.pc[edge])}.` : `Reducing it by ${protocol}: confidence changes by ${number(-effect.pc[edge])}, the predicted class ${effect.changed[edge] ? "changes" : "stays"}.`);
  }
  return parts.join(" ");
}
function row(tag, ...cells) {
  return h("tr", {}, cells.map((cell2) => h(tag, { scope: "col" }, cell2)));
}

// src/edge_table.js
var FIRST_ROWS = 50;
var LONGEST2 = 20;
var NOISE2 = 1e-9;
var SAME = 1e-6;
var EdgeTable = class {
  #rows = [];
  #sort = { key: null, down: true };
  #shown = FIRST_ROWS;
  #current = null;
  #marked = -1;
  /** `choose(edge)` is called with the row that gets the focus, `hover(edge)` with the one under the pointer, `ask(state)` for all columns. */
  constructor({ choose, hover, ask }) {
    this.choose = choose;
    this.head = h("thead");
    this.body = h("tbody", {
      keydown: (event) => this.#keys(event),
      focusin: (event) => this.#focused(event),
      pointerover: (event) => hover(edgeOf(event.target), event),
      pointerleave: (event) => hover(-1, event),
      click: (event) => edgeOf(event.target) >= 0 && choose(edgeOf(event.target))
    });
    this.caption = h("caption", {});
    this.more = h("button", { type: "button", class: "more", click: () => this.#showMore() });
    this.scroller = h(
      "div",
      { class: "scroller", role: "region", "aria-label": "Edges", tabindex: 0 },
      h("table", { class: "edges" }, this.caption, this.head, this.body),
      this.more
    );
    this.words = h("dl", {});
    this.all = h("input", { type: "checkbox", change: () => ask({ columns: this.all.checked }) });
    this.element = h(
      "div",
      { class: "edge-table" },
      this.scroller,
      h(
        "div",
        { class: "columns" },
        h("label", { class: "check" }, this.all, "all columns"),
        h("details", {}, h("summary", {}, "What the columns mean"), this.words)
      )
    );
  }
  /** Show the visible edges of a target; without another wish they are sorted by what the picture shows. */
  show(content, target, visible, { method, protocol, columns: hasAll }) {
    this.#current = { content, target, visible, method, protocol };
    this.all.checked = hasAll;
    this.columns = columns(content, target, method, protocol).filter((column) => hasAll || !column.isMore);
    if (!this.columns.some((column) => column.key === this.#sort.key)) this.#sort = { key: null, down: true };
    this.#shown = FIRST_ROWS;
    this.scroller.scrollTop = 0;
    const words = ["method", ...protocol ? content.predictsNumbers ? ["drop"] : ["pc", "then", "ne"] : [], ...target.truth ? ["truth"] : []].map((word) => WORDS[word]);
    this.words.replaceChildren(...words.map(([name, meaning]) => h("div", {}, h("dt", {}, name), h("dd", {}, meaning))));
    this.#draw();
  }
  #draw() {
    const { target, visible, method } = this.#current;
    const key = this.#sort.key ?? `score ${method}`;
    const column = this.columns.find((one) => one.key === key) ?? this.columns[0];
    const edges = Array.from({ length: target.size }, (_, edge) => edge).filter((edge) => visible[edge]);
    const sign = this.#sort.down ? -1 : 1;
    this.order = edges.sort((a, b) => sign * compare(column.order(a), column.order(b)) || a - b);
    this.head.replaceChildren(h("tr", {}, this.columns.map((one) => this.#heading(one, one === column))));
    this.#rows = [];
    this.body.replaceChildren();
    this.#grow(this.#shown);
    this.mark(this.#marked, false);
  }
  #heading(column, isSorted) {
    const direction = this.#sort.down ? "descending" : "ascending";
    const press = () => {
      this.#sort = { key: column.key, down: isSorted ? !this.#sort.down : column.down };
      this.#draw();
      this.head.querySelector(`[data-key="${CSS.escape(column.key)}"]`).focus();
    };
    return h(
      "th",
      { scope: "col", "aria-sort": isSorted ? direction : null, class: column.class },
      h(
        "button",
        { type: "button", "data-key": column.key, title: column.hint, click: press },
        column.title,
        h("span", { class: "arrow", "aria-hidden": "true" }, isSorted ? this.#sort.down ? "▼" : "▲" : "")
      )
    );
  }
  #grow(until) {
    const { target } = this.#current;
    for (const edge of this.order.slice(this.#rows.length, until)) {
      const cells = this.columns.map((column, place2) => {
        const side = column.sign ? sideOf(column.sign(edge)) : "";
        const cell2 = h(
          place2 === 0 ? "th" : "td",
          { class: side ? `${column.class} ${side}` : column.class, scope: place2 === 0 ? "row" : null },
          column.text(edge)
        );
        if (column.bar) cell2.style.setProperty("--bar", `${Math.round(column.bar(edge) * 100)}%`);
        return cell2;
      });
      const row2 = h("tr", { "data-edge": edge, tabindex: this.#rows.length === 0 ? 0 : -1 }, cells);
      if (target.truth?.[edge]) row2.classList.add("true");
      this.#rows.push(row2);
      this.body.append(row2);
    }
    const left = this.order.length - this.#rows.length;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show more (${whole(left)} left)`;
    this.caption.textContent = `${whole(this.order.length)} of ${whole(target.wholeEdges)} edges`;
  }
  #showMore() {
    const first = this.#rows.length;
    this.#grow(this.#shown = first + 200);
    this.#rows[first]?.focus();
  }
  /** Mark the chosen edge's row, and bring it into view. */
  mark(edge, scroll) {
    this.#marked = edge;
    this.body.querySelector(".chosen")?.classList.remove("chosen");
    if (edge < 0) return;
    const place2 = this.order.indexOf(edge);
    if (place2 < 0) return;
    if (place2 >= this.#rows.length) this.#grow(this.#shown = place2 + 20);
    const row2 = this.#rows[place2];
    row2.classList.add("chosen");
    this.#rove(row2);
    if (scroll) {
      const [top, bottom] = [row2.offsetTop - this.head.offsetHeight - 30, row2.offsetTop + row2.offsetHeight];
      if (this.scroller.scrollTop > top) this.scroller.scrollTop = top;
      else if (this.scroller.scrollTop + this.scroller.clientHeight < bottom) {
        this.scroller.scrollTop = bottom - this.scroller.clientHeight;
      }
    }
  }
  /** One row at a time is in the order of the Tab key. */
  #rove(row2) {
    for (const other of this.body.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    row2.tabIndex = 0;
  }
  #focused(event) {
    const edge = edgeOf(event.target);
    if (edge >= 0) this.choose(edge);
  }
  #keys(event) {
    const place2 = this.#rows.indexOf(event.target.closest("tr"));
    const to = { ArrowDown: place2 + 1, ArrowUp: place2 - 1, Home: 0, End: this.order.length - 1 }[event.key];
    if (to === void 0 || to < 0 || to >= this.order.length) return;
    event.preventDefault();
    if (to >= this.#rows.length) this.#grow(this.#shown = to + 20);
    this.#rove(this.#rows[to]);
    this.#rows[to].focus();
  }
};
function columns(content, target, method, protocol) {
  const { source, destination } = target;
  const effect = target.effects[protocol];
  const isEffect = Boolean(effect) && target.scores[method].every((value, edge) => Math.abs(value - effect.pc[edge]) <= SAME);
  const score = ({ name, label }) => {
    const values = target.scores[name];
    const bars = strengths(values);
    return {
      key: `score ${name}`,
      title: label,
      class: name === method ? "number barred" : "number",
      down: true,
      hint: `score by ${label}`,
      text: (edge) => values[edge] !== 0 && Math.abs(values[edge]) < NOISE2 * bars.largest ? "≈ 0" : number(values[edge]),
      order: (edge) => size(values[edge]),
      sign: (edge) => values[edge],
      bar: name === method ? (edge) => Math.abs(bars.of[edge]) : null,
      isMore: name !== method
    };
  };
  const measured = (key, title, values, hint, isMore) => ({
    key,
    title,
    class: "number wrap",
    down: true,
    hint,
    isMore,
    text: (edge) => signed(values[edge]),
    order: (edge) => size(values[edge]),
    sign: (edge) => key === "pc" ? values[edge] : 0
  });
  return [
    {
      key: "edge",
      title: "edge",
      class: "name",
      down: false,
      hint: "source → destination",
      text: (edge) => [h("span", { class: "ends", title: edgeName(target, edge) }, edgeName(target, edge, LONGEST2)), about(target, edge)],
      order: (edge) => target.nodes[source[edge]] * 2 ** 26 + target.nodes[destination[edge]]
    },
    score(content.methods.find(({ name }) => name === method)),
    effect ? measured(
      "pc",
      content.dropName,
      effect.pc,
      content.predictsNumbers ? "decline of the predicted number" : "ΔPC: decline of the predicted class's probability",
      isEffect
    ) : null,
    effect && !content.predictsNumbers ? {
      key: "after",
      title: "prediction then",
      class: "after",
      down: true,
      hint: "prediction after the reduction; changed classes first",
      text: (edge) => h("span", { title: afterwards(content, target, effect, edge) }, afterwards(content, target, effect, edge, LONGEST2)),
      order: (edge) => effect.changed[edge] * 2 + size(effect.pc[edge])
    } : null,
    effect && !content.predictsNumbers ? measured("ne", "loss of certainty", effect.ne, "ΔNE: rise of the entropy", true) : null,
    ...content.methods.filter(({ name }) => name !== method).map(score),
    target.truth ? {
      key: "truth",
      title: "true",
      class: "flag",
      down: true,
      hint: "edges that are known to explain the target",
      isMore: true,
      text: (edge) => target.truth[edge] ? "true" : "",
      order: (edge) => target.truth[edge]
    } : null,
    content.relations ? {
      key: "relation",
      title: "relation",
      class: "relation",
      down: false,
      hint: "the relation that the edge belongs to",
      isMore: true,
      text: (edge) => target.relationName(edge),
      order: (edge) => content.relations.indexOf(target.relationName(edge))
    } : null
  ].filter(Boolean);
}
function about(target, edge) {
  const words = [target.relationName(edge), target.truth?.[edge] ? "true explanation" : ""].filter(Boolean);
  return words.length > 0 ? h("small", {}, words.join(" · ")) : "";
}
var sideOf = (value) => value < 0 ? "against" : "";
function compare(a, b) {
  const [x, y] = [Number.isNaN(a) ? -Infinity : a, Number.isNaN(b) ? -Infinity : b];
  return x === y ? 0 : x < y ? -1 : 1;
}
function edgeOf(element) {
  return Number(element.closest("tr[data-edge]")?.dataset.edge ?? -1);
}

// src/export.js
var SVG2 = "http://www.w3.org/2000/svg";
var SHARPNESS = 2;
function download(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1e3);
}
function composed(pictures2, content, colors) {
  const boxes = pictures2.map((picture) => picture.box);
  const width = boxes.reduce((sum, box) => sum + box.width, 0);
  const names = content.groups && pictures2.some((picture) => picture.groups.size > 0) ? content.groups.names.map((name, group) => [name, group]).filter(([, group]) => pictures2.some((picture) => picture.groups.has(group))) : [];
  const top = Math.max(...boxes.map((box) => box.height));
  const height = top + (names.length > 0 ? 26 : 0);
  const svg = document.createElementNS(SVG2, "svg");
  for (const [key, value] of [["viewBox", `0 0 ${width} ${height}`], ["width", width], ["height", height]]) svg.setAttribute(key, value);
  svg.append(s("rect", { width, height, fill: colors.paper }));
  let left = 0;
  pictures2.forEach((picture, place2) => {
    const copy2 = picture.svg.cloneNode(true);
    for (const [key, value] of [["x", left], ["width", boxes[place2].width], ["height", boxes[place2].height]]) copy2.setAttribute(key, value);
    left += boxes[place2].width;
    svg.append(copy2);
  });
  let x = 14;
  for (const [name, group] of names) {
    svg.append(
      s("circle", { cx: x + 5, cy: top + 12, r: 5, fill: groupColor(colors, content.groupRank(group)), stroke: colors.rim }),
      s("text", { x: x + 14, y: top + 16, "font-size": 11, "font-family": "system-ui, sans-serif", fill: colors.ink }, name)
    );
    x += 26 + 6.4 * name.length;
  }
  return { text: new XMLSerializer().serializeToString(svg), width, height };
}
function saveSvg(pictures2, content, colors, name) {
  download(new Blob([composed(pictures2, content, colors).text], { type: "image/svg+xml" }), `${name}.svg`);
}
async function savePng(pictures2, content, colors, name) {
  const { text, width, height } = composed(pictures2, content, colors);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = h("canvas", { width: width * SHARPNESS, height: height * SHARPNESS });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download(blob, `${name}.png`), "image/png");
}
function columns2(content, target) {
  const list = [];
  if (target.truth) list.push(["true", (edge) => target.truth[edge]]);
  for (const { name } of content.methods) list.push([name, (edge) => target.scores[name][edge]]);
  for (const { name } of content.protocols) {
    const effect = target.effects[name];
    list.push(
      [`dpc_${name}`, (edge) => effect.pc[edge]],
      [`dne_${name}`, (edge) => effect.ne[edge]],
      [`changed_${name}`, (edge) => effect.changed[edge]]
    );
  }
  return list;
}
function saveCsv(content, target, name) {
  const list = columns2(content, target);
  const relations = content.relations ? ["relation"] : [];
  const rows = [["target", "source", "destination", "source_name", "destination_name", ...relations, ...list.map(([title]) => title)]];
  for (let edge = 0; edge < target.size; edge++) {
    const [from, to] = [target.source[edge], target.destination[edge]];
    rows.push([
      content.targetId(target),
      target.nodes[from],
      target.nodes[to],
      target.names[from],
      target.names[to],
      ...relations.map(() => target.relationName(edge)),
      ...list.map(([, value]) => value(edge))
    ]);
  }
  download(new Blob([rows.map((row2) => row2.map(cell).join(",")).join("\r\n"), "\r\n"], { type: "text/csv" }), `${name}.csv`);
}
function cell(value) {
  if (typeof value === "number") return Number.isNaN(value) ? "" : String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
function saveGraphml(content, target, name) {
  const space = "http://graphml.graphdrawing.org/xmlns";
  const file = document.implementation.createDocument(space, "graphml");
  const make = (tag, attributes, ...children) => {
    const element = file.createElementNS(space, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, clean(value));
    element.append(...children);
    return element;
  };
  const data = (key, value) => {
    const element = make("data", { key });
    element.textContent = clean(value);
    return element;
  };
  const list = columns2(content, target);
  const graph = make("graph", { id: `${content.kind}_${content.targetId(target)}`, edgedefault: "directed" });
  const keys = [
    ["name", "node", "string"],
    ["target", "node", "boolean"],
    ...target.group ? [["group", "node", "string"]] : [],
    ...content.relations ? [["relation", "edge", "string"]] : [],
    ...list.map(([title]) => [title, "edge", "double"])
  ];
  const id = (title, where) => `${where}_${title}`;
  for (const [title, where, type] of keys) {
    file.documentElement.append(make("key", { id: id(title, where), for: where, "attr.name": title, "attr.type": type }));
  }
  target.names.forEach((title, node) => {
    const element = make("node", { id: `n${node}` }, data(id("name", "node"), title), data(id("target", "node"), target.roots.includes(node)));
    if (target.group) element.append(data(id("group", "node"), content.groups.names[target.group[node]] ?? ""));
    graph.append(element);
  });
  for (let edge = 0; edge < target.size; edge++) {
    const element = make("edge", { id: `e${edge}`, source: `n${target.source[edge]}`, target: `n${target.destination[edge]}` });
    if (content.relations) element.append(data(id("relation", "edge"), target.relationName(edge)));
    for (const [title, value] of list) element.append(data(id(title, "edge"), value(edge)));
    graph.append(element);
  }
  file.documentElement.append(graph);
  const text = `<?xml version="1.0" encoding="UTF-8"?>
${new XMLSerializer().serializeToString(file)}`;
  download(new Blob([text], { type: "application/xml" }), `${name}.graphml`);
}
var clean = (value) => String(value).replaceAll(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "");
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { readonly: true, "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// src/layout.js
var SWEEPS = 80;
var PULL = 6;
function wholeLayout(target) {
  return { x: target.x, y: target.y, spacing: target.spacing, shown: new Uint8Array(target.nodes.length).fill(1) };
}
function partLayout(target, visible) {
  const shown = new Uint8Array(target.nodes.length);
  for (const root of target.roots) shown[root] = 1;
  for (let edge = 0; edge < target.size; edge++) {
    if (visible[edge]) shown[target.source[edge]] = shown[target.destination[edge]] = 1;
  }
  const nodes = Array.from(shown.keys()).filter((node) => shown[node]);
  if (nodes.length === target.nodes.length || nodes.length > 700) return { ...wholeLayout(target), shown };
  const place2 = new Map(nodes.map((node, position) => [node, position]));
  const steps = distances(target, visible, nodes, place2);
  const x = Float64Array.from(nodes, (node) => target.x[node]);
  const y = Float64Array.from(nodes, (node) => target.y[node]);
  relax(x, y, steps, new Set(target.roots.map((root) => place2.get(root))));
  return { ...spreadOut(target, nodes, x, y), shown };
}
function distances(target, visible, nodes, place2) {
  const beside = nodes.map(() => []);
  for (let edge = 0; edge < target.size; edge++) {
    if (!visible[edge]) continue;
    const [from, to] = [place2.get(target.source[edge]), place2.get(target.destination[edge])];
    if (from !== to) beside[from].push(to), beside[to].push(from);
  }
  let longest = 1;
  const rows = nodes.map((_, start) => {
    const row2 = new Float64Array(nodes.length).fill(Infinity);
    row2[start] = 0;
    const queue = [start];
    for (const node of queue) {
      for (const next of beside[node]) {
        if (row2[next] !== Infinity) continue;
        row2[next] = row2[node] + 1;
        longest = Math.max(longest, row2[next]);
        queue.push(next);
      }
    }
    return row2;
  });
  for (const row2 of rows) row2.forEach((steps, node) => {
    if (steps === Infinity) row2[node] = longest + 2;
  });
  return rows;
}
function relax(x, y, steps, roots) {
  const size2 = x.length;
  const unit = Math.max(...steps.map((row2) => Math.max(...row2))) || 1;
  for (let node = 0; node < size2; node++) {
    x[node] = x[node] * unit + 1e-3 * Math.cos(node);
    y[node] = y[node] * unit + 1e-3 * Math.sin(node);
  }
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    for (let node = 0; node < size2; node++) {
      let [sum, toX, toY] = [0, 0, 0];
      for (let other = 0; other < size2; other++) {
        if (other === node) continue;
        const wanted = steps[node][other];
        const weight = (roots.has(node) || roots.has(other) ? PULL : 1) / (wanted * wanted);
        const [dx, dy] = [x[node] - x[other], y[node] - y[other]];
        const length2 = Math.hypot(dx, dy) || 1e-9;
        sum += weight;
        toX += weight * (x[other] + wanted * dx / length2);
        toY += weight * (y[other] + wanted * dy / length2);
      }
      if (sum > 0) [x[node], y[node]] = [toX / sum, toY / sum];
    }
  }
}
function spreadOut(target, nodes, x, y) {
  const middle = (values) => (Math.min(...values) + Math.max(...values)) / 2;
  const [cx, cy] = [middle(x), middle(y)];
  const reach = Math.max(1e-9, ...x.map((value) => Math.abs(value - cx)), ...y.map((value) => Math.abs(value - cy)));
  const [all, down] = [new Float64Array(target.nodes.length), new Float64Array(target.nodes.length)];
  nodes.forEach((node, position) => {
    all[node] = (x[position] - cx) / reach;
    down[node] = (y[position] - cy) / reach;
  });
  const nearest = nodes.map((node) => {
    let least = Infinity;
    for (const other of nodes) if (other !== node) least = Math.min(least, Math.hypot(all[node] - all[other], down[node] - down[other]));
    return least;
  }).sort((a, b) => a - b);
  const spacing = nodes.length > 1 ? nearest[Math.floor(nearest.length * 0.2)] : 1;
  return { x: all, y: down, spacing: Math.max(spacing, 0.02) };
}

// src/shapes.js
var SAMPLES = 8;
function arrow(from, to, bend, width, head) {
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
    `Q${at(mid, atMid, -half)} ${at(start, atStart, -half)}Z`
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
function loop(disc, angle, width, head) {
  const size2 = disc.r * 0.85;
  const away = disc.r + size2 * 0.55;
  const centre = { x: disc.x + away * Math.cos(angle), y: disc.y + away * Math.sin(angle) };
  const open = Math.acos(Math.max(-1, Math.min(1, (away ** 2 + size2 ** 2 - (disc.r + 1) ** 2) / (2 * away * size2))));
  const [first, last] = [angle + Math.PI + open, angle + 3 * Math.PI - open];
  const reach = Math.min(head / size2, (last - first) * 0.5);
  const [half, neck] = [width / 2, last - reach];
  const side = Math.max(head * 0.45, half * 1.6);
  const on = (turn, radius) => `${round(centre.x + radius * Math.cos(turn))} ${round(centre.y + radius * Math.sin(turn))}`;
  const [outer, inner] = [size2 + half, Math.max(size2 - half, 0.1)];
  const large = neck - first > Math.PI ? 1 : 0;
  const path = [
    `M${on(first, outer)}A${round(outer)} ${round(outer)} 0 ${large} 1 ${on(neck, outer)}`,
    `L${on(neck, size2 + side)}L${on(last, size2)}L${on(neck, Math.max(size2 - side, 0))}L${on(neck, inner)}`,
    `A${round(inner)} ${round(inner)} 0 ${large} 0 ${on(first, inner)}Z`
  ].join("");
  const line = `M${on(first, size2)}A${round(size2)} ${round(size2)} 0 1 1 ${on(last, size2)}`;
  const points = [];
  for (let sample = 0; sample <= SAMPLES; sample++) {
    const turn = first + (last - first) * sample / SAMPLES;
    points.push(centre.x + size2 * Math.cos(turn), centre.y + size2 * Math.sin(turn));
  }
  return { path, line, points };
}
function step(from, to) {
  const line = `M${round(from.x)} ${round(from.y)}L${round(to.x)} ${round(to.y)}`;
  return { path: line, line, points: [from.x, from.y, to.x, to.y] };
}
var ON_NODE = 5;
var nameSize = (disc) => Math.min(10, (disc.small ?? disc.r) * 0.8);
var CORNERS = [0, 4, 3, 4, 6, 5];
var TURNS2 = [0, Math.PI / 4, -Math.PI / 2, 0, 0, -Math.PI / 2];
function outline(disc, grow = 0) {
  const kind = disc.shape % CORNERS.length;
  const r = disc.r + grow;
  if (!kind) return ["circle", { cx: disc.x, cy: disc.y, r }];
  const corners = CORNERS[kind];
  const reach = r * (corners === 3 ? 1.35 : corners === 4 ? 1.2 : 1.08);
  const points = Array.from({ length: corners }, (_, corner) => {
    const angle = TURNS2[kind] + 2 * Math.PI * corner / corners;
    return `${round(disc.x + reach * Math.cos(angle))},${round(disc.y + reach * Math.sin(angle))}`;
  });
  return ["polygon", { points: points.join(" ") }];
}
function distance(points, x, y) {
  let nearest = Infinity;
  for (let place2 = 0; place2 + 3 < points.length; place2 += 2) {
    const [ax, ay] = [points[place2], points[place2 + 1]];
    const [dx, dy] = [points[place2 + 2] - ax, points[place2 + 3] - ay];
    const along = Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1)));
    nearest = Math.min(nearest, Math.hypot(x - ax - along * dx, y - ay - along * dy));
  }
  return nearest;
}
function gaps(discs, source, destination, visible) {
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
    found.forEach((angle, place2) => {
      const gap = (found[place2 + 1] ?? found[0] + 2 * Math.PI) - angle;
      if (gap > widest + 1e-9) [widest, middle] = [gap, angle + gap / 2];
    });
    return middle;
  });
}
var length = (a, b) => Math.hypot(b.x - a.x, b.y - a.y);
var round = (value) => Math.round(value * 100) / 100;
var at = (point, direction, shift) => `${round(point.x + direction.x * shift)} ${round(point.y + direction.y * shift)}`;
function towards(from, to, way) {
  const whole2 = length(from, to) || 1;
  return { x: from.x + (to.x - from.x) * way / whole2, y: from.y + (to.y - from.y) * way / whole2 };
}
function normal(from, to) {
  const whole2 = length(from, to) || 1;
  return { x: (to.y - from.y) / whole2, y: (from.x - to.x) / whole2 };
}

// src/neighbourhood.js
var NAMED = 80;
var LONGEST3 = 14;
function neighbourhoodScene(content, target, values, visible, layout, box, colors, largest = null, asked = {}) {
  const discs = place(content, target, layout, box, colors, asked.sized);
  const { of: strength, largest: scale } = strengths(values, largest);
  const turns = gaps(discs, target.source, target.destination, visible);
  const key = (from, to) => from * 65536 + to;
  const seen = /* @__PURE__ */ new Set();
  for (let edge = 0; edge < target.size; edge++) if (visible[edge]) seen.add(key(target.source[edge], target.destination[edge]));
  const times = /* @__PURE__ */ new Map();
  const links = [];
  for (const edge of ranking(strength.map(Math.abs)).reverse()) {
    if (!visible[edge]) continue;
    const [from, to] = [target.source[edge], target.destination[edge]];
    const force = Math.min(1, Math.abs(strength[edge]));
    const r = discs[to].small;
    const width = Math.max(0.5, r * 0.06) + Math.max(2.6, r * 0.42) * force;
    const head = Math.max(3, r * 0.5) + Math.max(4, r * 0.45) * force;
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
      fill: group === void 0 ? null : groupColor(colors, content.groupRank(group)),
      shape: content.groups?.shapes ? group : 0,
      name: fewNodes || isTarget ? short(target.labels[node], LONGEST3) : ""
    };
  });
  for (const node of fewNodes ? drawn : []) discs[node].name = fitted(discs[node], target.labels[node], drawn.map((other) => discs[other]));
  return discs;
}
function fitted(disc, name, others) {
  if (Array.from(name).length <= ON_NODE) return name;
  const size2 = nameSize(disc);
  const room = Math.min(...others.filter((other) => other !== disc && Math.abs(other.y - disc.y) < 1.5 * size2).map((other) => Math.abs(other.x - disc.x)), Infinity);
  const most = Math.min(LONGEST3, Math.floor(room / (0.6 * size2)) - 1);
  return most >= ON_NODE ? short(name, most) : disc.isTarget ? short(name, ON_NODE) : "";
}

// src/picture.js
var NEAR = 14;
var pictures = 0;
var Picture = class {
  #scene = { links: [], discs: [] };
  #colors;
  #release = () => {
  };
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
    this.svg.addEventListener("pointerdown", (event) => pressed = [event.clientX, event.clientY]);
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
  groups = /* @__PURE__ */ new Set();
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
      this.#legend(height)
    );
    this.#release = this.viewport.attach(this.svg, group);
  }
  #halos() {
    const lines = this.#scene.links.filter(this.#scene.truth);
    const width = Math.max(5, ...lines.map((link) => link.width + 5));
    return s("path", {
      d: lines.map((link) => link.line).join(""),
      fill: "none",
      stroke: this.#colors.truth,
      "stroke-opacity": 0.42,
      "stroke-width": width,
      "stroke-linecap": "round"
    });
  }
  /** Attention over all nodes: dashed arcs from the node that is read to the node that reads it. */
  #arcs() {
    return s("g", { class: "arcs", "pointer-events": "none" }, (this.#scene.arcs ?? []).map((arc) => s("path", {
      d: arc.line,
      fill: "none",
      stroke: arc.fill,
      "stroke-width": arc.width,
      "stroke-opacity": 0.35 + 0.5 * arc.strength,
      "stroke-dasharray": "6 3"
    })));
  }
  #links() {
    return s("g", {}, this.#scene.links.map((link) => link.fill ? s("path", { d: link.path, fill: link.fill }) : s("path", {
      d: link.path,
      fill: "none",
      stroke: link.stroke,
      "stroke-width": link.width,
      "stroke-dasharray": link.isLoop ? "5 3" : null
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
        "stroke-width": disc.isTrue ? Math.min(2.5, disc.r / 3) : Math.min(1.2, disc.r / 4)
      })));
      if (disc.name) group.append(this.#name(disc));
    }
    return group;
  }
  /** A node's name: on it where it fits, else below. */
  #name(disc) {
    if (disc.upright) return this.#upright(disc);
    const fits = disc.name.length <= ON_NODE;
    const size2 = fits ? Math.min(disc.r, 2.6 * disc.r / Math.max(disc.name.length, 2)) : nameSize(disc);
    const fill2 = fits && disc.isTarget && !disc.fill ? this.#colors.onTarget : disc.faded ? this.#colors.muted : this.#colors.ink;
    return s("text", {
      x: disc.x,
      y: fits ? disc.y + size2 * 0.36 : disc.y + disc.r + size2 + 1,
      fill: fill2,
      "text-anchor": "middle",
      "paint-order": "stroke",
      stroke: fits ? null : this.#colors.paper,
      "stroke-width": fits ? null : size2 / 4,
      ...font(size2)
    }, disc.name);
  }
  /** A name that runs down from its node: where nodes stand close together. */
  #upright(disc) {
    const size2 = Math.min(10, disc.upright);
    const place2 = `translate(${disc.x - size2 * 0.34} ${disc.y + disc.r + 3}) rotate(90)`;
    return s("text", { transform: place2, fill: this.#colors.muted, ...font(size2) }, disc.name);
  }
  #marks() {
    return s("g", { "pointer-events": "none" }, (this.#scene.marks ?? []).map((mark) => s("text", {
      class: "times",
      x: mark.x,
      y: mark.y,
      fill: this.#colors.muted,
      "paint-order": "stroke",
      stroke: this.#colors.paper,
      "stroke-width": 2.5,
      ...font(9.5)
    }, mark.text)));
  }
  #levels() {
    return s("g", {}, (this.#scene.levels ?? []).map((level) => s("text", { x: level.x, y: level.y, fill: this.#colors.muted, ...font(12) }, level.text)));
  }
  #legend(height) {
    const { largest, negative } = this.#scene.scale;
    const colors = this.#colors;
    const [x, y, width] = [12, height - 22, negative ? 180 : 120];
    const stops = Array.from({ length: 9 }, (_, place2) => {
      const strength = negative ? place2 / 4 - 1 : place2 / 8;
      return s("stop", { offset: place2 / 8, "stop-color": colorOf(colors, strength) });
    });
    const text = (place2, anchor, content) => s("text", { x: place2, y: y + 19, fill: colors.muted, "text-anchor": anchor, ...font(11) }, content);
    const ends = negative ? [-largest, 0, largest] : [0, largest];
    const anchors = negative ? ["start", "middle", "end"] : ["start", "end"];
    const parts = [
      s("linearGradient", { id: this.id }, stops),
      s("rect", { x, y, width, height: 7, rx: 2, fill: `url(#${this.id})` }),
      ...ends.map((end, place2) => text(x + width * place2 / (ends.length - 1), anchors[place2], number(end))),
      ...(negative ? [["against", "start", x], ["for", "end", x + width]] : []).map(([word, anchor, place2]) => s("text", { x: place2, y: y - 5, fill: colors.muted, "text-anchor": anchor, ...font(11) }, word))
    ];
    if (this.#scene.links.some(this.#scene.truth)) {
      const start = x + width + 22;
      parts.push(
        s("rect", { x: start, y, width: 26, height: 7, rx: 3, fill: colors.truth, "fill-opacity": 0.5 }),
        text(start, "start", "true explanation")
      );
    }
    return s("g", { "pointer-events": "none" }, parts);
  }
  /** Show one edge wherever it is drawn, or one step of a tree with its way to the root; and edges that are taken out. */
  highlight(edge, step2 = -1, cut = []) {
    const { links, discs, steps } = this.#scene;
    const way = [];
    for (let at2 = step2 >= 0 && steps ? step2 - 1 : -1; at2 >= 0 && steps[at2]; at2 = steps[at2].up) way.push(steps[at2]);
    const chosen = way.length > 0 ? way : edge < 0 ? [] : links.filter((link) => link.edge === edge);
    const rings = new Set(chosen.flatMap((link) => link.ends));
    this.overlay?.replaceChildren(
      ...chosen.flatMap((link) => [
        s("path", {
          d: link.line,
          fill: "none",
          stroke: this.#colors.chosen,
          "stroke-width": link.width + 4.5,
          "stroke-linecap": "round",
          "stroke-opacity": 0.85
        }),
        s("path", link.fill ? { d: link.path, fill: link.fill, stroke: this.#colors.paper, "stroke-width": 0.8 } : { d: link.line, stroke: link.stroke, "stroke-width": link.width + 0.8, fill: "none" })
      ]),
      ...links.filter((link) => cut.includes(link.edge)).map((link) => s("path", {
        class: "cut",
        d: link.line,
        fill: "none",
        stroke: this.#colors.paper,
        "stroke-width": link.width + 1.5,
        "stroke-dasharray": "3 4"
      })),
      ...Array.from(rings, (node) => discs[node]).map((disc) => s(...outlined(disc, 2.5, { fill: this.#colors.chosen })))
    );
    this.above?.replaceChildren(...this.#products(way), ...this.#relation(way.length > 0 ? [] : chosen));
  }
  /** The attention on each step of a way to the root, and the product at its start. */
  #products(way) {
    if (way.length === 0) return [];
    const label = (x2, y, text2, weight) => s("text", {
      class: weight > 400 ? "product" : "factor",
      x: x2,
      y,
      fill: this.#colors.ink,
      "text-anchor": "middle",
      "paint-order": "stroke",
      stroke: this.#colors.paper,
      "stroke-width": 4,
      "stroke-linejoin": "round",
      ...font(11.5, weight)
    }, text2);
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
        class: "relation",
        x: link.points[middle],
        y: link.points[middle + 1] - 6,
        fill: this.#colors.ink,
        "text-anchor": "middle",
        "paint-order": "stroke",
        stroke: this.#colors.paper,
        "stroke-width": 4,
        ...font(11.5, 600)
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
};
function outlined(disc, grow, attributes) {
  const [tag, place2] = outline({ shape: 0, ...disc }, grow);
  return [tag, { ...place2, ...attributes }];
}
var font = (size2, weight = 400) => ({
  "font-size": Math.round(size2 * 10) / 10,
  "font-weight": weight,
  "font-family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
});

// src/target_list.js
var MOST = 400;
var LONGEST4 = 30;
var lists = 0;
var TargetList = class {
  #found = [];
  #current = 0;
  /** `choose(position)` picks a target; `changed({find, show, sort})` is told what the list is asked for. */
  constructor(content, choose, asked, changed) {
    this.content = content;
    this.choose = choose;
    this.asked = { find: "", show: "all", sort: "telling", ...asked };
    this.changed = changed;
    this.id = `attree-targets-${lists++}`;
    const noun = content.noun.toLowerCase();
    this.search = h("input", {
      type: "search",
      placeholder: `Find a ${noun}`,
      "aria-label": `Find a ${noun} by number, name or class`,
      "aria-controls": this.id,
      input: () => this.#ask({ find: this.search.value }),
      keydown: (event) => this.#keys(event)
    });
    this.list = h("div", {
      id: this.id,
      class: "targets",
      role: "listbox",
      tabindex: 0,
      "aria-label": `Explained ${noun}s`,
      keydown: (event) => this.#keys(event),
      click: (event) => {
        const option2 = event.target.closest("[data-target]");
        if (option2) choose(Number(option2.dataset.target));
      }
    });
    this.note = h("p", { class: "notes", role: "status" });
    this.search.value = this.asked.find;
    this.filters = this.#filters();
    this.sorts = this.#sorts();
    const option = (entries) => Object.entries(entries).map(([key, [text]]) => [key, text]);
    if (!(this.asked.show in this.filters)) this.asked.show = "all";
    if (!(this.asked.sort in this.sorts)) this.asked.sort = "telling";
    this.element = h(
      "div",
      { class: "target-list" },
      this.search,
      h(
        "div",
        { class: "fields" },
        Object.keys(this.filters).length > 1 ? select("Show", option(this.filters), this.asked.show, (show) => this.#ask({ show })).element : null,
        select("Sort", option(this.sorts), this.asked.sort, (sort) => this.#ask({ sort })).element
      ),
      this.list,
      this.note
    );
    this.#draw();
  }
  #ask(change) {
    Object.assign(this.asked, change);
    this.#draw();
    this.changed(this.asked);
  }
  #filters() {
    const { targets } = this.content;
    const filters = { all: ["all", () => true] };
    const wrong = (target) => target.true !== void 0 && target.predicted !== target.true;
    if (targets.some((target) => target.predicted !== void 0 && wrong(target))) {
      filters.wrong = ["wrong predictions", wrong];
      filters.right = ["right predictions", (target) => !wrong(target)];
    }
    if (targets.some((target) => target.truth)) filters.truth = ["with true edges", (target) => Boolean(target.truth)];
    return filters;
  }
  /** Orders of the list; the targets come with the most instructive first. */
  #sorts() {
    const { content } = this;
    const sorts = { telling: ["most instructive first", () => 0], id: ["by name", (a, b) => compare2(content.targetName(a), content.targetName(b))] };
    if (content.targets.some((target) => target.confidence !== void 0)) {
      sorts.unsure = ["least sure first", (a, b) => (a.confidence ?? 2) - (b.confidence ?? 2)];
    }
    sorts.large = ["largest first", (a, b) => b.wholeEdges - a.wholeEdges];
    return sorts;
  }
  /** Every word that a target can be found by. */
  #words(target) {
    const { content } = this;
    const words = [String(content.targetId(target)), content.targetName(target)];
    for (const own of [target.predicted, target.true]) if (own !== void 0) words.push(content.className(own));
    return words.join(" ").toLowerCase();
  }
  #draw() {
    const asked = this.search.value.trim().toLowerCase();
    const { content } = this;
    const exact = (position) => content.targetName(content.targets[position]).toLowerCase() === asked;
    this.#found = content.targets.map((target, position) => [target, position]).filter(([target]) => this.filters[this.asked.show][1](target) && this.#words(target).includes(asked)).sort(([a], [b]) => this.sorts[this.asked.sort][1](a, b)).map(([, position]) => position);
    if (asked) this.#found.sort((a, b) => exact(b) - exact(a));
    this.list.replaceChildren(...this.#found.slice(0, MOST).map((position) => this.#option(position)));
    const parts = [`${whole(this.#found.length)} of ${whole(content.targets.length)}`];
    if (this.#found.length > MOST) parts.push(`first ${MOST} listed`);
    if (content.targets.length < content.numTargets) parts.push(`${whole(content.numTargets)} were evaluated`);
    this.note.textContent = parts.join("; ");
    this.mark(this.#current);
  }
  #option(position) {
    const { content } = this;
    const target = content.targets[position];
    const option = h("div", {
      role: "option",
      id: `${this.id}-${position}`,
      "data-target": position,
      "aria-selected": "false"
    }, h("span", { class: "name", title: content.targetName(target) }, short(content.targetName(target), LONGEST4)));
    if (target.predicted !== void 0) {
      const isWrong = target.true !== void 0 && target.true !== target.predicted;
      option.append(
        h("span", { class: "class" }, content.className(target.predicted)),
        h("span", { class: isWrong ? "mark wrong" : "mark" }, isWrong ? "wrong" : percent(target.confidence))
      );
    }
    return option;
  }
  /** Show which target is looked at. */
  mark(position) {
    this.#current = position;
    this.list.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    const option = this.list.querySelector(`[data-target="${position}"]`);
    option?.setAttribute("aria-selected", "true");
    if (option) this.list.setAttribute("aria-activedescendant", option.id);
    else this.list.removeAttribute("aria-activedescendant");
    if (!option) return;
    const [top, bottom] = [option.offsetTop, option.offsetTop + option.offsetHeight];
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    else if (bottom > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = bottom - this.list.clientHeight;
  }
  /** The target some places on in the list as it is filtered; where that leaves one alone, among all. */
  neighbour(step2) {
    const among = this.#found.length > 1 ? this.#found : [...this.content.targets.keys()];
    const place2 = among.indexOf(this.#current);
    return place2 < 0 ? among[0] : among[((place2 + step2) % among.length + among.length) % among.length];
  }
  #keys(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
    if (event.key in steps) this.choose(this.neighbour(steps[event.key]));
    else if (event.key === "Enter" && this.#found.length > 0) this.choose(this.#found[0]);
    else if (event.target === this.list && event.key === "Home") this.choose(this.#found[0]);
    else if (event.target === this.list && event.key === "End") this.choose(this.#found.at(-1));
    else return;
    event.preventDefault();
  }
};
var compare2 = (a, b) => a.localeCompare(b, "en", { numeric: true });

// src/tree.js
var FIRST_NODES = 120;
var MOST_NODES = 400;
var MARK_ROOM = 15;
function growTree(target, most = MOST_NODES) {
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
        const attention2 = layer.weight[edge];
        next.push({ node: target.source[edge], depth, parent, edge, attention: attention2, flow: parent.flow * attention2 });
      }
    }
    level = next.sort((a, b) => b.flow - a.flow).slice(0, most);
    grown.push(...level);
  }
  return grown.sort((a, b) => b.flow - a.flow || a.depth - b.depth).slice(0, most).sort((a, b) => a.depth - b.depth);
}
function occurrences(tree) {
  const times = /* @__PURE__ */ new Map();
  for (const { edge } of tree) if (edge >= 0) times.set(edge, (times.get(edge) ?? 0) + 1);
  return times;
}
function treeScene(content, target, tree, box, colors) {
  const height = target.layers.length;
  const across = spread(tree);
  const leaves = Math.max(...across) + 1;
  const [left, top] = [76, 56];
  const gap = (box.width - left - 30) / leaves;
  const rise = (box.height - top - 100) / height;
  const gaps2 = levelGaps(tree, across, height).map((least) => least * gap);
  const discs = tree.map((own, place2) => ({
    node: own.node,
    step: place2,
    fill: target.group ? groupColor(colors, content.groupRank(target.group[own.node])) : null,
    shape: content.groups?.shapes ? target.group?.[own.node] ?? 0 : 0,
    x: left + (across[place2] + 0.5) * gap,
    y: top + own.depth * rise,
    r: own.depth === 0 ? 13 : Math.max(1.6, Math.min(12, 0.42 * gaps2[own.depth])),
    isTarget: target.roots.includes(own.node),
    name: short(target.labels[own.node], 10),
    // The lowest names run downwards where they would be too small on their nodes.
    upright: own.depth === height && gaps2[height] < 22 ? gaps2[height] : 0
  }));
  const placeOf = new Map(tree.map((own, place2) => [own, place2]));
  const times = occurrences(tree);
  const links = tree.slice(1).map((own, before) => {
    const [from, to] = [before + 1, placeOf.get(own.parent)];
    const thick = Math.min(1, discs[from].r / 6);
    return {
      edge: own.edge,
      step: from,
      factor: number(own.attention, 3),
      product: number(own.flow, 3),
      up: to - 1,
      // the step above, by its place among the steps; -1 at the root
      ...step(discs[from], discs[to]),
      ends: [from, to],
      width: Math.max(0.5, thick * (0.9 + 4 * own.attention)),
      stroke: colorOf(colors, own.attention),
      strength: own.attention,
      isLoop: target.source[own.edge] === target.destination[own.edge]
    };
  });
  const steps = [...links];
  links.sort((a, b) => a.strength - b.strength);
  const marks = links.filter((link) => times.get(link.edge) > 1 && gaps2[tree[link.step].depth] >= MARK_ROOM).map((link) => {
    const [x1, y1, x2, y2] = link.points;
    const turn = discs[link.step].r + (discs[link.step].isTarget ? 13 : 9);
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
    scale: { largest: 1, negative: false }
  };
}
function levelGaps(tree, across, height) {
  const places = Array.from({ length: height + 1 }, () => []);
  tree.forEach((own, place2) => places[own.depth].push(across[place2]));
  return places.map((level) => {
    level.sort((a, b) => a - b);
    return Math.min(99, ...level.slice(1).map((place2, before) => place2 - level[before]));
  });
}
function spread(tree) {
  const children = new Map(tree.map((own) => [own, []]));
  for (const own of tree) if (own.parent) children.get(own.parent).push(own);
  const place2 = /* @__PURE__ */ new Map();
  let leaves = 0;
  const visit = (own) => {
    const below = children.get(own);
    below.forEach(visit);
    place2.set(own, below.length === 0 ? leaves++ : (place2.get(below[0]) + place2.get(below.at(-1))) / 2);
  };
  visit(tree[0]);
  return tree.map((own) => place2.get(own));
}

// src/viewport.js
var MOST2 = 40;
var Viewport = class {
  #views = [];
  constructor() {
    this.scale = 1;
    this.x = 0;
    this.y = 0;
  }
  /** Move `group` with this viewport; gestures on `svg` change it. Call the result to let go. */
  attach(svg, group, moved = () => {
  }) {
    const view = { svg, apply: () => {
      group.setAttribute("transform", `translate(${this.x} ${this.y}) scale(${this.scale})`);
      moved();
    } };
    this.#views.push(view);
    view.apply();
    this.#listen(svg);
    return () => this.#views.splice(this.#views.indexOf(view), 1);
  }
  /** Everything in view again. */
  fit() {
    [this.scale, this.x, this.y] = [1, 0, 0];
    this.#apply();
  }
  /** Zoom by a factor about a point of the picture, by default its middle. */
  zoom(factor, x, y) {
    const box = this.#views[0]?.svg.viewBox.baseVal;
    if (!box) return;
    const [px, py] = [x ?? box.width / 2, y ?? box.height / 2];
    const scale = Math.min(MOST2, Math.max(0.5, this.scale * factor));
    this.x = px - (px - this.x) * scale / this.scale;
    this.y = py - (py - this.y) * scale / this.scale;
    this.scale = scale;
    this.#apply();
  }
  #apply() {
    for (const view of this.#views) view.apply();
  }
  #listen(svg) {
    const held = /* @__PURE__ */ new Map();
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * 4e-3), event.offsetX, event.offsetY);
    }, { passive: false });
    svg.addEventListener("pointerdown", (event) => held.set(event.pointerId, event));
    svg.addEventListener("pointermove", (event) => {
      const before = held.get(event.pointerId);
      if (!before) return;
      const others = [...held.values()].filter((other) => other.pointerId !== event.pointerId);
      if (others.length > 0) {
        const away = (point) => Math.hypot(point.offsetX - others[0].offsetX, point.offsetY - others[0].offsetY) || 1;
        this.zoom(
          away(event) / away(before),
          (event.offsetX + others[0].offsetX) / 2,
          (event.offsetY + others[0].offsetY) / 2
        );
      } else {
        svg.setPointerCapture(event.pointerId);
        this.x += event.offsetX - before.offsetX;
        this.y += event.offsetY - before.offsetY;
        this.#apply();
      }
      held.set(event.pointerId, event);
    });
    for (const end of ["pointerup", "pointercancel", "pointerleave"]) {
      svg.addEventListener(end, (event) => held.delete(event.pointerId));
    }
  }
};

// src/explorer.js
var FEW = 90;
var AT_FIRST = 60;
var NONE = "nothing";
var WIDE = 760;
var Explorer = class {
  #visible = new Uint8Array(0);
  #layout = null;
  #tree = null;
  #hovered = null;
  /** `changed(state)` is told of everything that the reader chose, to keep it in the address; `link()` gives that address. */
  constructor(content, colors, state, changed, link = null) {
    this.content = content;
    this.colors = colors;
    this.changed = changed;
    this.link = link;
    this.state = {
      target: 0,
      method: content.opensWith ?? content.methods[0].name,
      beside: NONE,
      protocol: content.protocols[0]?.name ?? "",
      view: "graph",
      strongest: 0,
      edge: -1,
      node: -1,
      step: -1,
      loops: true,
      apart: false,
      sized: false,
      arcs: false,
      columns: false,
      scale: "own",
      cut: [],
      ...state
    };
    this.viewport = new Viewport();
    const pointed = { hover: (hit, event) => this.#hover(hit, event), choose: (hit, event) => this.#chooseHit(hit, event) };
    this.pictures = [new Picture(this.viewport, pointed), new Picture(this.viewport, pointed)];
    this.table = new EdgeTable({
      choose: (edge) => this.choose(edge, false),
      hover: (edge) => this.#hover(edge < 0 ? null : { edge, step: -1 }, null),
      ask: (asked) => this.set(asked)
    });
    this.list = new TargetList(content, (position) => this.set({ target: position }), state, (asked) => {
      Object.assign(this.state, asked);
      this.changed(this.state);
    });
    this.whatIf = new WhatIf(content, { toggle: (edge) => this.cut(edge), clear: () => this.set({ cut: [] }) });
    this.tooltip = h("div", { class: "card floating", role: "tooltip", hidden: true });
    this.card = h("section", { class: "card docked", "aria-label": "What is chosen", hidden: true });
    this.live = h("div", { class: "hidden-text", "aria-live": "polite" });
    this.heading = h("h2", { class: "target-name" });
    this.about = h("p", { class: "about" });
    this.note = h("span", { class: "notes", role: "status" });
    this.legend = h("ul", { class: "legend groups", "aria-label": content.groups ? `Colours: ${content.groups.meaning}` : "Colours" });
    this.element = this.#build();
    this.#show();
    new ResizeObserver(() => this.#resized()).observe(this.stage);
  }
  get target() {
    return this.content.target(this.state.target);
  }
  #build() {
    const { content } = this;
    this.stage = h("div", {
      class: "stage",
      tabindex: 0,
      role: "group",
      "aria-roledescription": "picture",
      "aria-label": "Picture. Arrow keys go from edge to edge by score, Page keys to other targets, plus and minus zoom, 0 fits.",
      keydown: (event) => this.#keys(event),
      blur: () => this.#hover(null, null)
    }, this.pictures[0].element, this.pictures[1].element);
    const tool = (text, label, click) => h("button", { type: "button", "aria-label": label, title: label, click }, text);
    this.all = h("button", { type: "button", class: "all", click: () => this.set({ strongest: Infinity }) }, "Show all");
    const files = h("details", { class: "menu" }, h("summary", {}, "Save"), h(
      "div",
      { class: "entries" },
      tool("Picture (SVG)", "Save the picture as SVG", () => this.#save(saveSvg)),
      tool("Picture (PNG)", "Save the picture as PNG", () => this.#save(savePng)),
      tool("Edges (CSV)", "Save all edges as a CSV table", () => saveCsv(content, this.target, this.#fileName())),
      tool("Graph (GraphML)", "Save the graph as GraphML", () => saveGraphml(content, this.target, this.#fileName()))
    ));
    files.addEventListener("focusout", (event) => {
      if (!files.contains(event.relatedTarget)) files.open = false;
    });
    return h(
      "section",
      { class: "explorer", "aria-label": "Explorer" },
      h("div", { class: "side" }, this.list.element),
      h(
        "div",
        { class: "middle" },
        h(
          "div",
          { class: "heading" },
          tool("‹", "Previous target", () => this.set({ target: this.list.neighbour(-1) })),
          tool("›", "Next target", () => this.set({ target: this.list.neighbour(1) })),
          h("div", {}, this.heading, this.about)
        ),
        h("div", { class: "frame" }, this.stage, h(
          "div",
          { class: "zoom" },
          tool("+", "Zoom in", () => this.viewport.zoom(1.4)),
          tool("−", "Zoom out", () => this.viewport.zoom(1 / 1.4)),
          tool("Fit", "Fit the picture", () => this.viewport.fit())
        )),
        this.whatIf.element,
        this.legend,
        h("p", { class: "left-out" }, this.note, this.all),
        this.#fields(),
        h("div", { class: "controls" }, this.#views(), files, this.link ? this.#linkButton() : null),
        this.#filters()
      ),
      h("div", { class: "wide" }, this.table.element, this.card),
      this.tooltip,
      this.live
    );
  }
  /** What the picture shows: the method, what it is compared with, and how edges are reduced. */
  #fields() {
    const { content, state } = this;
    const methods = content.methods.map(({ name, label }) => [name, label]);
    const effect = content.protocols.length > 0 ? [["what really happens", [[EFFECT, content.dropName]]]] : [];
    const beside = [[NONE, "nothing"], ["scores", methods], ...effect];
    const field = (label, options, key, word, extra) => {
      const { element, control } = select(label, options, state[key], (value) => this.set({ [key]: value }));
      if (key === "beside") this.besideControl = control;
      return h("div", { class: "with-term" }, element, term(word, extra));
    };
    const meanings = content.protocols.filter(({ meaning }) => meaning).map(({ name, meaning }) => `${name}: ${meaning}`);
    return h(
      "div",
      { class: "controls" },
      field("Method", methods, "method", "method"),
      field("Compare with", beside, "beside", "compare"),
      content.protocols.length > 0 ? field("Reduce an edge by", content.protocols.map(({ name }) => [name, name]), "protocol", "protocol", meanings) : null
    );
  }
  #views() {
    const { content } = this;
    this.views = {};
    const view = (name, text) => this.views[name] = h("button", { type: "button", click: () => this.set({ view: name, step: -1 }) }, text);
    const hasTree = content.targets.some((target) => target.layers);
    const switcher = h(
      "div",
      { class: "switch", role: "group", "aria-label": "View" },
      view("graph", content.kind === "graph" ? "Graph" : "Neighbourhood"),
      hasTree ? view("tree", "Computation tree") : null
    );
    return h("div", { class: "view" }, switcher, hasTree ? term("tree") : null);
  }
  /** What of the picture is drawn. */
  #filters() {
    const { content, state } = this;
    this.filter = h("input", { type: "range", min: 0, max: 1e3, step: 1, input: () => this.#filtered() });
    this.filterText = h("output", {});
    const check = (key, text, [off, on] = [false, true]) => {
      const box = h("input", { type: "checkbox", change: () => this.set({ [key]: box.checked ? on : off }) });
      box.checked = state[key] === on;
      return h("label", { class: "check" }, box, text);
    };
    this.sharedCheck = check("scale", "one scale for both", ["own", "shared"]);
    return h(
      "div",
      { class: "controls" },
      h("label", { class: "field filter" }, h("span", {}, "Strongest edges "), this.filterText, this.filter),
      h(
        "div",
        { class: "checks" },
        check("loops", "self-loops"),
        check("apart", "unconnected nodes"),
        content.targets.some((target) => target.nodeScores) ? check("sized", `nodes by ${content.nodeMethod ?? "score"}`) : null,
        content.targets.some((target) => target.arcs) ? check("arcs", "attention over all nodes") : null,
        this.sharedCheck
      )
    );
  }
  #linkButton() {
    const button = h("button", {
      type: "button",
      click: async () => {
        this.changed(this.state);
        button.textContent = await copy(this.link()) ? "Link copied" : "Copy the address above";
        setTimeout(() => button.textContent = "Copy link", 2500);
      }
    }, "Copy link");
    return button;
  }
  /** Look at something else. */
  set(changes) {
    const isOther = changes.target !== void 0 && changes.target !== this.state.target;
    Object.assign(this.state, changes);
    if (isOther) Object.assign(this.state, { edge: -1, node: -1, step: -1, cut: [], strongest: this.state.strongest === Infinity ? Infinity : 0 });
    if (isOther || changes.view) this.viewport.fit();
    this.#hovered = null;
    this.#show();
    this.changed(this.state);
  }
  /** Take an edge out of the graph, or put it back; without a model one edge at a time. */
  cut(edge) {
    const { cut } = this.state;
    const others = this.content.answers(this.target) ? cut : [];
    this.set({ cut: cut.includes(edge) ? cut.filter((one) => one !== edge) : [...others, edge] });
  }
  /** Other colours. */
  recolor(colors) {
    this.colors = colors;
    this.#draw();
  }
  #show() {
    const { content, state, target } = this;
    if (state.view === "tree" && !target.layers) state.view = "graph";
    this.#tree = state.view === "tree" ? growTree(target, state.strongest === Infinity ? MOST_NODES : FIRST_NODES) : null;
    this.heading.textContent = `${content.noun} ${content.targetName(target)}`;
    this.about.replaceChildren(...this.#describe());
    for (const [name, button] of Object.entries(this.views)) button.setAttribute("aria-pressed", String(name === state.view));
    this.filter.disabled = this.besideControl.disabled = Boolean(this.#tree);
    this.sharedCheck.hidden = this.#panels().length < 2;
    this.#choose();
    this.filter.value = sliderOf(this.#most(), target.size);
    this.list.mark(state.target);
    this.#draw();
    this.#list();
    this.whatIf.show(target, state.cut, state.protocol);
  }
  #resized() {
    const size2 = `${this.stage.clientWidth} ${this.stage.clientHeight}`;
    if (size2 === this.size) return;
    this.size = size2;
    this.viewport.fit();
    this.#draw();
  }
  #describe() {
    const { content, target } = this;
    const parts = [];
    if (target.predicted !== void 0) {
      const right = target.true === target.predicted ? ", which is right" : "";
      const label = target.label ? `${target.label}: ` : "";
      parts.push(`${label}predicted ${content.className(target.predicted)} (${percent(target.confidence)})${right}`);
    }
    if (target.true !== void 0 && target.true !== target.predicted) {
      parts.push(target.predicted === void 0 ? `truly ${content.className(target.true)}` : h("strong", { class: "wrong" }, `wrong: it is ${content.className(target.true)}`));
    }
    parts.push(`${count(target.wholeNodes, "node")}, ${count(target.wholeEdges, "edge")} ${content.kind === "graph" ? "" : "in its neighbourhood"}`);
    return parts.flatMap((part, place2) => place2 > 0 ? [" · ", part] : [part]);
  }
  /** How many edges are drawn at most. */
  #most() {
    const { strongest } = this.state;
    const { size: size2 } = this.target;
    return strongest > 0 ? Math.min(strongest, size2) : size2 <= FEW ? size2 : AT_FIRST;
  }
  /** Which edges are among the strongest, by either of the panels; unasked, true edges are shown too. */
  #choose() {
    const { content, state, target } = this;
    this.#visible = new Uint8Array(target.size);
    const most = this.#most();
    for (const shown of this.#panels()) {
      for (const edge of ranking(content.values(target, shown, state.protocol)).slice(0, most)) this.#visible[edge] = 1;
    }
    if (!state.strongest) target.truth?.forEach((isTrue, edge) => {
      if (isTrue) this.#visible[edge] = 1;
    });
    if (!state.loops) {
      for (let edge = 0; edge < target.size; edge++) if (target.source[edge] === target.destination[edge]) this.#visible[edge] = 0;
    }
    this.#layout = state.apart ? wholeLayout(target) : partLayout(target, this.#visible);
    const values = content.values(target, state.method, state.protocol);
    const least = ranking(values)[most - 1];
    this.filterText.textContent = most === target.size ? `all ${whole(most)}` : `${whole(most)} of ${whole(target.size)} (${values.some((value) => value < 0) ? "size " : ""}≥ ${number(Math.abs(values[least]))})`;
    this.filter.setAttribute("aria-valuetext", this.filterText.textContent);
  }
  #panels() {
    const { state } = this;
    return state.beside === NONE || this.#tree ? [state.method] : [state.method, state.beside];
  }
  #filtered() {
    this.state.strongest = this.filter.value === this.filter.max ? Infinity : countOf(Number(this.filter.value), this.target.size);
    this.#choose();
    this.#draw();
    this.#list();
    this.changed(this.state);
  }
  #list() {
    const { content, state, target } = this;
    this.table.show(content, target, this.#visible, state);
    this.table.mark(state.edge, true);
  }
  #draw() {
    const { content, state, target, colors } = this;
    const panels = this.#panels();
    this.stage.classList.toggle("two", panels.length > 1);
    this.stage.classList.toggle("stacked", panels.length > 1 && this.stage.clientWidth < WIDE);
    this.pictures[1].element.hidden = panels.length < 2;
    const name = `${content.noun.toLowerCase()} ${content.targetName(target)}`;
    const drawn = this.#visible.reduce((sum, flag2) => sum + flag2, 0);
    const groupOf = (node) => target.group?.[node] ?? -1;
    const all = panels.map((shown) => content.values(target, shown, state.protocol));
    const largest = state.scale === "shared" && panels.length > 1 ? Math.max(...all.map((values) => strengths(values).largest)) : null;
    panels.forEach((shown, place2) => {
      const picture = this.pictures[place2];
      if (this.#tree) {
        const part = this.#tree.length < target.treeSize;
        const title = "attention on each step";
        picture.draw(
          treeScene(content, target, this.#tree, picture.box, colors),
          colors,
          title,
          `Computation tree of ${name}: ${count(this.#tree.length, "node")} drawn${part ? `, of ${whole(target.treeSize)}` : ""}`,
          groupOf
        );
      } else {
        const title = content.valuesLabel(shown, state.protocol);
        picture.draw(
          neighbourhoodScene(content, target, all[place2], this.#visible, this.#layout, picture.box, colors, largest, state),
          colors,
          title,
          `Neighbourhood of ${name} by ${title}: ${count(drawn, "edge")} drawn; the table lists them`,
          groupOf
        );
      }
    });
    this.#say(drawn, panels.length > 1 && largest === null);
    this.#drawLegend();
    this.#highlight();
  }
  /** What is not drawn, and how to see it. */
  #say(drawn, ownScales) {
    const { target } = this;
    const notes2 = [];
    if (this.#tree) {
      notes2.push("Point at a step to see the product along its path. ×n: an edge that occurs n times; dashed: a self-loop.");
      if (this.#tree.length < target.treeSize) notes2.push(`The ${whole(this.#tree.length)} tree nodes with the most attention to the root, of ${whole(target.treeSize)}.`);
      this.all.hidden = this.#tree.length >= Math.min(target.treeSize, MOST_NODES);
    } else {
      if (drawn < target.size) notes2.push(`${whole(drawn)} of ${whole(target.size)} edges are drawn${this.state.strongest || target.size > FEW ? ", the strongest" : ""}.`);
      if (ownScales) notes2.push("Each picture has its own scale: colours compare edges within it.");
      this.all.hidden = this.#most() >= target.size;
    }
    if (target.leftOut) notes2.push(`${target.leftOut}.`);
    this.note.textContent = notes2.join(" ");
  }
  /** Colours and shapes of the nodes that are on screen. */
  #drawLegend() {
    const { content, colors } = this;
    const seen = new Set(this.#panels().flatMap((_, place2) => [...this.pictures[place2].groups]));
    this.legend.hidden = !content.groups || seen.size === 0;
    if (this.legend.hidden) return;
    const entries = content.groups.names.map((name, group) => [name, group]).filter(([, group]) => seen.has(group));
    const listed = entries.filter(([, group]) => group < colors.groups.length);
    const item = (name, fill2, shape) => {
      const [tag, place2] = outline({ x: 7, y: 7, r: 5.2, shape });
      return h("li", {}, s("svg", { class: "sample", viewBox: "0 0 14 14", "aria-hidden": "true" }, s(tag, { ...place2, fill: fill2, stroke: colors.rim })), name);
    };
    this.legend.replaceChildren(
      h("li", { class: "meaning" }, `${content.groups.meaning}:`),
      ...listed.map(([name, group]) => item(name, groupColor(colors, group), content.groups.shapes ? group : 0)),
      ...entries.length > listed.length ? [item("others", colors.other, 0)] : []
    );
  }
  #chooseHit(hit, event) {
    if (hit?.node !== void 0) {
      this.choose(-1);
      this.state.node = hit.node;
      this.#highlight();
      return;
    }
    if (hit && event.shiftKey) this.cut(hit.edge);
    else this.choose(hit?.edge ?? -1, true, hit?.step ?? -1);
  }
  /** Keep one edge in view, or none (-1); choosing it again lets it go. */
  choose(edge, scroll = true, step2 = -1) {
    const isSame = scroll && edge === this.state.edge && step2 === this.state.step;
    Object.assign(this.state, { edge: isSame ? -1 : edge, step: isSame ? -1 : step2, node: -1 });
    this.#hovered = null;
    this.table.mark(this.state.edge, scroll);
    this.#highlight();
    if (this.state.edge >= 0) {
      const { content, state, target } = this;
      this.live.textContent = edgeSentence(content, target, edge, state.method, state.protocol);
    }
    this.changed(this.state);
  }
  #hover(hit, event) {
    if (hit === null && this.#hovered === null) return;
    const isOther = JSON.stringify(hit) !== JSON.stringify(this.#hovered);
    this.#hovered = hit;
    if (isOther) this.#highlight();
    const onPicture = hit !== null && event !== null && (hit.node !== void 0 || hit.edge !== this.state.edge);
    this.tooltip.hidden = !onPicture;
    if (!onPicture) return;
    if (isOther) this.tooltip.replaceChildren(...this.#cardOf(hit));
    this.#place(event);
  }
  #cardOf(hit) {
    const { content, state, target } = this;
    if (hit.node === void 0) return edgeCard(content, target, hit.edge, this.#tree, state.protocol);
    const values = content.values(target, state.method, state.protocol);
    return nodeCard(content, target, hit.node, values, this.#visible, content.label[state.method]);
  }
  /** Show the edge under the pointer, or else the chosen one; the card is always the chosen one's. */
  #highlight() {
    const { edge, node, step: step2, cut } = this.state;
    const shown = this.#hovered?.edge ?? edge;
    const way = this.#hovered ? this.#hovered.step ?? -1 : step2;
    this.#panels().forEach((_, place2) => this.pictures[place2].highlight(shown, way, cut));
    this.card.hidden = edge < 0 && node < 0;
    if (this.#hovered === null) this.tooltip.hidden = true;
    if (this.card.hidden) return;
    const close = h("button", { type: "button", class: "close", "aria-label": "Let go", click: () => this.choose(-1) }, "×");
    const parts = this.#cardOf(node >= 0 ? { node } : { edge });
    if (edge >= 0 && this.content.protocols.length > 0) {
      const text = cut.includes(edge) ? "Put this edge back" : "Take this edge out";
      parts.push(h("button", { type: "button", class: "take", click: () => this.cut(edge) }, text));
    }
    this.card.replaceChildren(close, ...parts);
  }
  /** Put the tooltip beside the pointer, inside the explorer and the window. */
  #place({ clientX, clientY }) {
    const frame = this.element.getBoundingClientRect();
    const [width, height] = [this.tooltip.offsetWidth, this.tooltip.offsetHeight];
    const left = clientX + 22 + width < frame.right ? clientX + 22 : clientX - 22 - width;
    const top = Math.max(frame.top, Math.min(clientY - height / 3, innerHeight - height - 8));
    this.tooltip.style.left = `${Math.max(0, left - frame.left)}px`;
    this.tooltip.style.top = `${top - frame.top}px`;
  }
  #keys(event) {
    const actions = {
      ArrowRight: () => this.#move(1),
      ArrowDown: () => this.#move(1),
      ArrowLeft: () => this.#move(-1),
      ArrowUp: () => this.#move(-1),
      PageDown: () => this.set({ target: this.list.neighbour(1) }),
      PageUp: () => this.set({ target: this.list.neighbour(-1) }),
      "+": () => this.viewport.zoom(1.4),
      "=": () => this.viewport.zoom(1.4),
      "-": () => this.viewport.zoom(1 / 1.4),
      0: () => this.viewport.fit(),
      Delete: () => this.state.edge >= 0 && this.cut(this.state.edge),
      Escape: () => this.choose(-1)
    };
    if (!(event.key in actions) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }
  /** Go to the next edge by score, of those that are drawn. */
  #move(step2) {
    const { content, state, target } = this;
    const order = ranking(content.values(target, state.method, state.protocol)).filter((edge) => this.pictures[0].shows(edge));
    if (order.length === 0) return;
    const place2 = order.indexOf(state.edge);
    const next = place2 < 0 ? step2 > 0 ? 0 : order.length - 1 : (place2 + step2 + order.length) % order.length;
    if (order[next] !== state.edge) this.choose(order[next]);
  }
  #fileName(parts = []) {
    return [this.content.kind, this.content.targetId(this.target), ...parts].join("_").replaceAll(/[^\w.-]+/g, "_");
  }
  #save(write) {
    const what = this.#tree ? ["tree"] : this.#panels().map((shown) => shown || `dpc_${this.state.protocol}`);
    write(this.#panels().map((_, place2) => this.pictures[place2]), this.content, this.colors, this.#fileName(what));
  }
};
var countOf = (slider, size2) => Math.max(1, Math.round(Math.exp(slider / 1e3 * Math.log(size2))));
var sliderOf = (kept, size2) => Math.round((size2 > 1 ? Math.log(kept) / Math.log(size2) : 1) * 1e3);

// src/network.js
var FUNCTIONS = {
  none: (x) => x,
  relu: (x) => Math.max(0, x),
  elu: (x) => x > 0 ? x : Math.expm1(x),
  leaky_relu: (x) => x > 0 ? x : 0.01 * x,
  tanh: Math.tanh,
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  silu: (x) => x / (1 + Math.exp(-x))
};
var unpackAll2 = (packed) => Object.fromEntries(Object.entries(packed).map(([name, values]) => [name, Float64Array.from(unpack(values))]));
var Network = class {
  constructor(content) {
    Object.assign(this, content);
    this.layers = content.layers.map((layer) => ({ ...layer, weights: unpackAll2(layer.weights) }));
    this.inputs = unpackAll2(content.inputs);
    this.degree = unpack(content.degree);
  }
  /** The probabilities of all classes now, and with the edges of `cut` reduced. */
  answer(target, cut, protocol) {
    return { now: this.predict(target, [], protocol), then: this.predict(target, cut, protocol) };
  }
  /** The probabilities of all classes with some edges reduced, given by their places among the edges of the target. */
  predict(target, cut, protocol) {
    const size2 = target.inputs.length;
    const isCut = new Uint8Array(target.size);
    for (const edge of cut) isCut[edge] = 1;
    const edges = { size: size2, isCut, source: target.source, destination: target.destination, degree: Array.from(target.inputs, (row2) => this.degree[row2]) };
    const rows = (table) => {
      if (!table) return null;
      const width2 = table.length / this.rows;
      const part = new Float64Array(size2 * width2);
      target.inputs.forEach((row2, node) => part.set(table.subarray(row2 * width2, (row2 + 1) * width2), node * width2));
      return part;
    };
    let [left, right, x] = [rows(this.inputs.left), rows(this.inputs.right), null];
    this.layers.forEach((layer, number2) => {
      if (number2 > 0) [left, right] = ["left", "right"].map((side) => project(layer.weights, side, x, size2));
      x = output(layer, left, right, edges, protocol);
      if (number2 < this.activations.length) x = x.map(FUNCTIONS[this.activations[number2]]);
    });
    const width = x.length / size2;
    const logits = new Float64Array(width);
    const nodes = this.pooling ? [...Array(size2).keys()] : [target.target];
    for (const node of nodes) for (let channel = 0; channel < width; channel++) logits[channel] += x[node * width + channel] / (this.pooling === "mean" ? size2 : 1);
    return softmax(this.binary ? [0, logits[0]] : Array.from(logits));
  }
};
function project(weights, side, x, size2) {
  const matrix = weights[side];
  if (!matrix) return null;
  const across = x.length / size2;
  const width = matrix.length / across;
  const bias = weights[`${side}_bias`];
  const projected = new Float64Array(size2 * width);
  for (let node = 0; node < size2; node++) {
    for (let channel = 0; channel < width; channel++) {
      let sum = bias ? bias[channel] : 0;
      for (let place2 = 0; place2 < across; place2++) sum += matrix[channel * across + place2] * x[node * across + place2];
      projected[node * width + channel] = sum;
    }
  }
  return projected;
}
function output(layer, left, right, { size: size2, source, destination, isCut, degree }, protocol) {
  const width = left.length / size2;
  const heads = layer.heads;
  const channels2 = width / heads;
  const removed = protocol === "removal";
  const used = Array.from(source.keys()).filter((edge) => (layer.loops || source[edge] !== destination[edge]) && !(removed && isCut[edge]));
  const factors = factorsOf[layer.kind](layer, left, right, used, { size: size2, source, destination, isCut, degree }, protocol);
  const sums = new Float64Array(size2 * width);
  used.forEach((edge, place2) => {
    for (let channel = 0; channel < width; channel++) {
      sums[destination[edge] * width + channel] += factors[place2 * heads + Math.floor(channel / channels2)] * left[source[edge] * width + channel];
    }
  });
  const wide = layer.joins ? width : channels2;
  const result = new Float64Array(size2 * wide);
  for (let node = 0; node < size2; node++) {
    for (let channel = 0; channel < width; channel++) {
      result[node * wide + (layer.joins ? channel : channel % channels2)] += sums[node * width + channel] / (layer.joins ? 1 : heads);
    }
    for (let channel = 0; channel < wide; channel++) {
      if (layer.weights.bias) result[node * wide + channel] += layer.weights.bias[channel];
      if (layer.kind === "sage" && right) result[node * wide + channel] += right[node * wide + channel];
    }
  }
  return result;
}
var factorsOf = {
  gat: attention,
  gatv2: attention,
  gcn({ loops }, left, right, used, { source, destination, isCut, degree }, protocol) {
    const degrees = degree.map((count2) => count2 + (loops ? 1 : 0));
    if (protocol === "removal") isCut.forEach((flag2, edge) => {
      if (flag2 && source[edge] !== destination[edge]) degrees[destination[edge]] -= 1;
    });
    const scale = degrees.map((count2) => count2 > 0 ? count2 ** -0.5 : 0);
    return used.map((edge) => isCut[edge] && protocol !== "coefficient" ? 0 : scale[source[edge]] * scale[destination[edge]]);
  },
  sage(layer, left, right, used, { size: size2, destination, isCut }, protocol) {
    const counts = new Float64Array(size2);
    for (const edge of used) counts[destination[edge]] += 1;
    return used.map((edge) => isCut[edge] && protocol !== "coefficient" ? 0 : 1 / counts[destination[edge]]);
  }
};
function attention(layer, left, right, used, { size: size2, source, destination, isCut }, protocol) {
  const { heads, slope, weights } = layer;
  const width = left.length / size2;
  const channels2 = width / heads;
  const leaky = (value) => value > 0 ? value : slope * value;
  const dot = (vector, table, node, head) => {
    let sum = 0;
    for (let channel = 0; channel < channels2; channel++) sum += vector[head * channels2 + channel] * table[node * width + head * channels2 + channel];
    return sum;
  };
  const score = layer.kind === "gat" ? (from, to, head) => leaky(dot(weights.source, left, from, head) + dot(weights.destination, left, to, head)) : (from, to, head) => {
    let sum = 0;
    for (let place2 = head * channels2; place2 < (head + 1) * channels2; place2++) sum += weights.score[place2] * leaky(left[from * width + place2] + right[to * width + place2]);
    return sum;
  };
  const scores = new Float64Array(used.length * heads);
  const highest2 = new Float64Array(size2 * heads).fill(-Infinity);
  used.forEach((edge, place2) => {
    for (let head = 0; head < heads; head++) {
      const value = protocol === "coefficient" && isCut[edge] ? 0 : score(source[edge], destination[edge], head);
      scores[place2 * heads + head] = value;
      highest2[destination[edge] * heads + head] = Math.max(highest2[destination[edge] * heads + head], value);
    }
  });
  const totals = new Float64Array(size2 * heads);
  const each = (visit) => used.forEach((edge, place2) => {
    for (let head = 0; head < heads; head++) visit(place2 * heads + head, destination[edge] * heads + head, edge);
  });
  each((place2, at2) => {
    scores[place2] = Math.exp(scores[place2] - highest2[at2]);
    totals[at2] += scores[place2];
  });
  each((place2, at2, edge) => {
    scores[place2] = protocol === "weight" && isCut[edge] ? 0 : scores[place2] / totals[at2];
  });
  return scores;
}
function softmax(logits) {
  const highest2 = Math.max(...logits);
  const shares = logits.map((value) => Math.exp(value - highest2));
  const total = shares.reduce((sum, share) => sum + share, 0);
  return shares.map((share) => share / total);
}

// src/summary.js
var TOTAL = "faithfulness";
var TRUTH = "truth_auroc";
var INSTEAD = "pc_pearson";
var OPEN = 2;
var EFFECTS = "explain/effects/";
var REDUCED = { removal: "edge deleted", weight: "weight set to 0" };
var FACTS = { "explain/bypass": ["kept without attention", percent] };
function summaryTable(content, colors) {
  const own = content.metrics.filter((metric) => metric.method !== void 0);
  const others = content.metrics.filter((metric) => metric.method === void 0 && !metric.name.startsWith(EFFECTS));
  const facts = [...content.summary, ...others.map(({ name, value }) => {
    const [text, write] = FACTS[name] ?? [name, number];
    return [text, write(value)];
  })];
  if (own.length === 0 && facts.length === 0) return null;
  const parts = [];
  if (facts.length > 0) {
    parts.push(h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
  }
  if (own.length > 0) parts.push(headline(content, own, colors), everything(content, own));
  return h("div", { class: "summary" }, parts);
}
function verdictBox(content) {
  const verdict = content.verdict ?? [];
  if (verdict.length === 0) return null;
  const open = verdict.length <= OPEN + 1 ? verdict.length : OPEN;
  const [first, more] = [verdict.slice(0, open), verdict.slice(open)].map((part) => part.map((sentence2) => h("p", {}, worded(sentence2))));
  return h(
    "section",
    { class: "verdict", "aria-label": "Verdict" },
    h("div", {}, first),
    more.length > 0 ? h("details", {}, h("summary", {}, `${more.length} more findings`), more) : null
  );
}
function headline(content, metrics, colors) {
  const methods = unique(metrics.map((metric) => metric.method));
  const protocols = unique(metrics.map((metric) => metric.protocol)).filter((protocol) => protocol !== null);
  const isKnown = (statistic, protocol) => metrics.some((metric) => metric.name === statistic && metric.protocol === protocol && Number.isFinite(metric.value));
  const columns3 = [
    { small: "", statistic: TRUTH, protocol: null, word: "auroc" },
    ...protocols.map((protocol) => {
      const leading = content.leading ?? TOTAL;
      const instead = !isKnown(leading, protocol) && isKnown(INSTEAD, protocol);
      const word = instead ? "confidence" : leading === TOTAL ? "faithfulness" : "within";
      return { small: REDUCED[protocol] ?? `reduced by ${protocol}`, statistic: instead ? INSTEAD : leading, protocol, word: content.predictsNumbers ? "drop" : word };
    })
  ].map((column) => ({ ...column, title: content.statistics[column.statistic] ?? column.statistic })).filter((column) => metrics.some((metric) => metric.name === column.statistic && metric.protocol === column.protocol));
  if (columns3.length === 0) return null;
  const value = (method, column) => metrics.find((metric) => metric.method === method && metric.name === column.statistic && metric.protocol === column.protocol);
  const best = columns3.map((column) => highest(methods.map((method) => value(method, column)?.value)));
  const rows = methods.map((method) => h(
    "tr",
    { "data-method": method },
    h("th", { scope: "row" }, swatch(content, method, colors), content.label[method] ?? method),
    columns3.map((column, place2) => h("td", { class: "number" }, written(value(method, column), best[place2])))
  ));
  const head = columns3.map((column, place2) => h(
    "th",
    { scope: "col", class: "number" },
    h("span", {}, column.title, columns3.findIndex(({ word }) => word === column.word) === place2 ? term(column.word) : null),
    column.small ? h("small", {}, column.small) : null
  ));
  return h(
    "div",
    {},
    h("table", { class: "headline" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "method"), head)), h("tbody", {}, rows)),
    metrics.some((metric) => metric.interval) ? h("p", { class: "notes" }, "with 95 % intervals", term("interval")) : null
  );
}
function everything(content, metrics) {
  const methods = unique(metrics.map((metric) => metric.method));
  const protocols = unique(metrics.map((metric) => metric.protocol));
  const head = h("thead", {}, h(
    "tr",
    {},
    h("th", { scope: "col" }, "compared with"),
    methods.map((method) => h("th", { scope: "col", class: "number" }, content.label[method] ?? method))
  ));
  const bodies = protocols.map((protocol) => {
    const within = metrics.filter((metric) => metric.protocol === protocol);
    const leading = content.leading ?? TOTAL;
    const statistics = unique(within.map((metric) => metric.name)).sort((a, b) => (b === leading) - (a === leading));
    const heading = protocol === null ? "ground truth" : `edges reduced by ${protocol}`;
    const meaning = content.protocols.find((one) => one.name === protocol)?.meaning;
    const rows = statistics.map((statistic) => {
      const values = methods.map((method) => within.find((metric) => metric.method === method && metric.name === statistic));
      const best = highest(values.map((one) => one?.value));
      return h(
        "tr",
        { class: statistic === leading ? "total" : "" },
        h("th", { scope: "row" }, content.statistics[statistic] ?? statistic),
        values.map((one) => h("td", { class: "number" }, written(one, best)))
      );
    });
    const label = h("th", { colspan: methods.length + 1, scope: "colgroup" }, heading, meaning ? h("small", {}, ` ${meaning}`) : "");
    return h("tbody", {}, h("tr", { class: "group" }, label), rows);
  });
  return h(
    "details",
    {},
    h("summary", {}, "All statistics"),
    h(
      "div",
      { class: "scroller", role: "region", tabindex: 0, "aria-label": "All statistics" },
      h("table", { class: "metrics" }, head, bodies)
    )
  );
}
function written(metric, best) {
  if (!metric) return "";
  const text = fixed(metric.value);
  const own = metric.value === best ? h("strong", {}, text) : text;
  return metric.interval ? [own, h("small", { class: "interval" }, ` ${fixed(metric.interval[0], 2)} to ${fixed(metric.interval[1], 2)}`)] : own;
}
var worded = (sentence2) => sentence2.split("`").map((part, place2) => place2 % 2 === 1 ? h("code", {}, part) : part);
function swatch(content, method, colors) {
  const color = content.methods.find((one) => one.name === method)?.color;
  const dot = h("span", { class: "swatch", "aria-hidden": "true" });
  if (color) dot.style.background = standingOut(colors, color);
  return dot;
}
function highest(values) {
  const known2 = values.filter((value) => typeof value === "number");
  return known2.length > 1 ? Math.max(...known2) : NaN;
}
var unique = (values) => [...new Set(values)];

// src/main.js
function mount(root, document_, asked = "", changed = () => {
}, link = null) {
  const network = document_.network ? new Network(document_.network) : null;
  const content = new Content(network ? { ...document_, live: async (...about3) => network.answer(...about3) } : document_);
  const state = fromText(content, asked);
  let theme = state.theme ?? ambientTheme();
  const themeButton = h("button", {
    type: "button",
    class: "theme",
    click: () => {
      explorer.state.theme = theme === "dark" ? "light" : "dark";
      setTheme(explorer.state.theme);
      explorer.changed(explorer.state);
    }
  });
  const explorer = new Explorer(content, palette(theme), state, (own) => changed(toText(content, own)), link);
  const [summary, curves] = [h("div"), h("div")];
  const overview = [];
  if (summaryTable(content, palette(theme))) overview.push(h("section", { "aria-labelledby": "attree-summary" }, h("h2", { id: "attree-summary" }, "How well the methods explain"), summary));
  if (curvePanels(content, palette(theme))) {
    overview.push(h("section", { "aria-labelledby": "attree-training" }, h("h2", { id: "attree-training" }, "Training"), curves));
  }
  function setTheme(next) {
    theme = next;
    root.dataset.theme = theme;
    themeButton.textContent = theme === "dark" ? "Light" : "Dark";
    themeButton.setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
    summary.replaceChildren(...[summaryTable(content, palette(theme))].filter(Boolean));
    curves.replaceChildren(...[curvePanels(content, palette(theme))].filter(Boolean));
    explorer.recolor(palette(theme));
  }
  const them = content.numTargets === 1 ? "it" : "them";
  const about2 = `${count(content.numTargets, content.noun.toLowerCase())} explained, ${count(content.numPairs, "edge")} ${content.kind === "graph" ? "in" : "around"} ${them}`;
  root.classList.add("attree");
  root.replaceChildren(
    h("header", {}, h("div", {}, h("h1", {}, content.title), h("p", { class: "about" }, about2)), themeButton),
    h("main", {}, verdictBox(content), explorer.element, overview.length > 0 ? h("div", { class: "overview" }, overview) : null),
    guide(content)
  );
  setTheme(theme);
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  preferred.addEventListener("change", () => root.isConnected && !explorer.state.theme && setTheme(ambientTheme()));
  return explorer;
}
function mountPage(content) {
  const keep = (text) => history.replaceState(null, "", `#${text}`);
  mount(document.getElementById("attree"), content, location.hash.slice(1), keep, () => location.href);
}
var question = (target, cut, protocol) => ({ target: target.position, edges: cut.map((edge) => target.edges[edge]), protocol });
async function askServer(...about2) {
  const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question(...about2)) };
  const answer = await fetch("what_if", request).catch(() => {
    throw new Error("The network does not answer: attree serve has stopped. Start it again and reload this page.");
  });
  const content = await answer.json().catch(() => ({ error: `The network does not answer (${answer.status}). Try again.` }));
  if (!answer.ok) throw new Error(content.error);
  return content;
}
var embedded = document.getElementById("attree-data");
if (embedded) {
  const content = JSON.parse(embedded.textContent);
  mountPage(content.serves ? { ...content, live: askServer } : content);
}
function askKernel(model) {
  let asked = 0;
  const waiting = /* @__PURE__ */ new Map();
  model.on("msg:custom", (message) => {
    const [done, failed] = waiting.get(message.number) ?? [];
    waiting.delete(message.number);
    if (done) message.error ? failed(new Error(message.error)) : done(message);
  });
  return (...about2) => new Promise((done, failed) => {
    waiting.set(++asked, [done, failed]);
    model.send({ number: asked, ...question(...about2) });
  });
}
var main_default = {
  render({ model, el }) {
    const root = h("div");
    el.append(root);
    const content = model.get("content");
    mount(root, content.serves ? { ...content, live: askKernel(model) } : content);
  }
};
export {
  Content,
  Network,
  main_default as default,
  mount
};
