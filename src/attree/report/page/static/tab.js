// attree's explorer, MIT licence. Made from web/src by web/build.js; it holds no code of others.

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
  const size = Math.abs(value);
  const text = size >= 1e-4 && size < 1e6 ? String(Number(value.toPrecision(digits))) : value.toExponential(2);
  return text.replace("-", "−").replace("e−", "e-").replace("e+", "e");
}
function fixed(value, digits = 4) {
  return typeof value === "number" && Number.isFinite(value) ? value.toFixed(digits).replace("-", "−") : number(value);
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
  const place = Math.min(1, Math.abs(strength)) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const [from, to] = [channels(stops[low]), channels(stops[low + 1])];
  return `rgb(${from.map((value, channel) => Math.round(value + (place - low) * (to[channel] - value))).join(",")})`;
}
function standingOut(colors, color) {
  const [paper, ink] = [channels(colors.paper), channels(colors.ink)];
  let own = channels(color);
  if (luminance(own) < 1e-3 && contrast(own, paper) < 3) return `rgb(${ink.join(",")})`;
  for (let step = 0; step < 20 && contrast(own, paper) < 3; step += 1) {
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
  const known = content.curves.map((curve) => ({ ...describe(content, curve.name), points: curve.points.filter(([, value]) => value !== null) })).filter(({ points }) => points.length > 0);
  for (const curve of known.sort((a, b) => byProtocol(a.protocol, b.protocol) || a.method - b.method)) {
    panels.set(curve.panel, [...panels.get(curve.panel) ?? [], { ...curve, dash: dash[curve.method] }]);
  }
  if (panels.size === 0) return null;
  const steps2 = [...panels.values()].flat().flatMap((curve) => curve.points.map(([step]) => step));
  const range = [Math.min(...steps2), Math.max(...steps2)];
  const kinds = Object.keys(LABELS);
  const place = ([, [first]]) => kinds.includes(first.kind) ? kinds.indexOf(first.kind) : kinds.length;
  const sorted = [...panels].sort((a, b) => place(a) - place(b));
  const open = Math.max(2, sorted.filter((entry) => place(entry) < kinds.length).length);
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
  const place = (name) => PROTOCOLS.includes(name) ? PROTOCOLS.indexOf(name) : PROTOCOLS.length;
  return a === b ? 0 : place(a) - place(b) || (a < b ? -1 : 1);
}
function dashes(methods) {
  const taken = /* @__PURE__ */ new Set();
  return methods.map(({ color }, place) => {
    const tries = DASHES.map((_, step) => DASHES[(place + step) % DASHES.length]);
    const dash = tries.find((one) => !taken.has(`${color} ${one}`)) ?? tries[0];
    taken.add(`${color} ${dash}`);
    return dash;
  });
}
var Panel = class {
  constructor(title, curves, range, [low, high], colors) {
    this.curves = curves.map((curve, place) => ({
      ...curve,
      dash: curve.method < 0 ? DASHES[place % DASHES.length] : curve.dash,
      color: curve.hue ? standingOut(colors, curve.hue) : colors.ink
    }));
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    const across = SIZE.width - SIZE.left - SIZE.right;
    const up = SIZE.height - SIZE.top - SIZE.bottom;
    this.x = (step) => SIZE.left + (step - range[0]) / (range[1] - range[0] || 1) * across;
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
    const points = curve.points.map(([step, value]) => `${this.x(step).toFixed(1)},${this.y(value).toFixed(1)}`);
    const [x, y] = points.at(-1).split(",");
    return s(
      "g",
      {},
      s("polyline", { points: points.join(" "), fill: "none", stroke: curve.color, "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": curve.dash }),
      s("circle", { cx: x, cy: y, r: 3, fill: curve.color })
    );
  }
  /** Show the values at a step, or those at the end. */
  #read(step) {
    const nearest = (points) => step === null ? points.at(-1) : points.reduce((best, point) => Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best);
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

// src/scatter.js
var SIZE2 = { width: 460, height: 280, left: 48, right: 14, top: 12, bottom: 46 };
var CHARACTER = 6.4;
var CORNERS = {
  diamond: [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  triangle: [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
  cross: [[-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]],
  "triangle down": [[0, 1.2], [1.1, -0.8], [-1.1, -0.8]]
};
var SHAPES = ["circle", "square", ...Object.keys(CORNERS)];
var COLORS = ["#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#32038f"];
function looksOf(entries, colors) {
  const own = (place) => entries.length <= COLORS.length ? standingOut(colors, COLORS[place]) : colorOf(colors, 0.15 + 0.85 * place / (entries.length - 1));
  return new Map(entries.map(([key, label, color], place) => [key, { label, color: color ? standingOut(colors, color) : own(place), shape: SHAPES[place % SHAPES.length] }]));
}
function scatter({ title, note, xTitle, points, looks, labels = null, joined = [], range = null, limit = null, choose, chosen, colors }) {
  const roomy = (values) => {
    const [low2, high2] = [Math.min(...values), Math.max(...values)];
    const room = (high2 - low2 || Math.abs(high2) || 1) * 0.07;
    return [low2 - room, high2 + room];
  };
  const [left, right] = labels ? [-0.5, labels.length - 0.5] : roomy(points.map((point) => point.x));
  const [low, high] = roomy(range ?? points.map((point) => point.y));
  const wide = SIZE2.width - SIZE2.left - SIZE2.right;
  const marks = labels ? labels.map((label, place) => [place, label]) : ticks(left, right, 5).map((value) => [value, number(value)]);
  const longest = Math.max(...marks.map(([, label]) => Math.min(label.length, 16))) * CHARACTER + 10;
  const fits = longest <= wide / (labels?.length ?? 1);
  const areNames = labels?.some((label) => Number.isNaN(Number(label)));
  const tilt = labels && !fits && areNames && labels.length <= 24;
  const every = labels && !fits && !tilt ? Math.ceil(longest * labels.length / wide) : 1;
  const below = tilt ? Math.min(70, longest * 0.6) : 0;
  const height = SIZE2.height + below;
  const bottom = SIZE2.height - SIZE2.bottom;
  const x = (value) => SIZE2.left + (value - left) / (right - left || 1) * wide;
  const y = (value) => SIZE2.top + (1 - (value - low) / (high - low || 1)) * (bottom - SIZE2.top);
  const text = (px, py, anchor, content, size = 11, more = {}) => s("text", { x: px, y: py, "text-anchor": anchor, "font-size": size, fill: colors.muted, ...more }, content);
  const parts = [];
  for (const value of ticks(low, high, 5)) {
    parts.push(
      s("line", { x1: SIZE2.left, x2: SIZE2.width - SIZE2.right, y1: y(value), y2: y(value), stroke: colors.faint }),
      text(SIZE2.left - 6, y(value) + 4, "end", number(value))
    );
  }
  for (const [value, label] of marks.filter((_, place) => place % every === 0)) {
    parts.push(tilt ? text(x(value) + 4, bottom + 14, "end", short(label, 16), 11, { transform: `rotate(-35 ${x(value) + 4} ${bottom + 14})` }) : text(x(value), bottom + 16, "middle", short(label, 16), 11));
  }
  parts.push(text((SIZE2.left + SIZE2.width - SIZE2.right) / 2, height - 8, "middle", xTitle, 12));
  if (limit !== null && limit > left && limit < right) {
    parts.push(s("line", { x1: x(limit), x2: x(limit), y1: SIZE2.top, y2: bottom, stroke: colors.muted, "stroke-dasharray": "2 3" }));
  }
  const colorOfKey = (key) => looks.get(key)?.color ?? colors.ink;
  for (const line of joined) {
    parts.push(s("polyline", {
      points: line.points.map(([px, py]) => `${x(px).toFixed(1)},${y(py).toFixed(1)}`).join(" "),
      fill: "none",
      stroke: colorOfKey(line.key),
      "stroke-width": 1.6,
      "stroke-opacity": 0.75,
      "stroke-dasharray": line.dash ?? null
    }));
  }
  const isChosen = (point) => point.run === chosen;
  for (const point of [...points].sort((a, b) => isChosen(a) - isChosen(b) || Boolean(b.faint) - Boolean(a.faint))) {
    const look = { fill: colorOfKey(point.key), "fill-opacity": isChosen(point) ? 1 : point.faint ? 0.3 : 0.85, stroke: isChosen(point) ? colors.ink : "none", "stroke-width": 1.5 };
    parts.push(s("g", {
      class: "point",
      role: "button",
      tabindex: -1,
      "data-run": point.run,
      "data-method": point.method,
      "data-key": point.key,
      "data-x": point.x,
      "aria-label": `${point.text}. Open this run`,
      click: () => choose(point.run)
    }, marker(looks.get(point.key)?.shape ?? "circle", x(point.x), y(point.y), isChosen(point) ? 6 : 4, look), s("title", {}, point.text)));
  }
  const about = `${title}: ${points.length} points; arrow keys go from point to point, Enter opens a run, and the table lists the runs`;
  const svg = s("svg", { role: "group", viewBox: `0 0 ${SIZE2.width} ${height}`, "aria-label": about, keydown: steps }, parts);
  svg.querySelector(".point")?.setAttribute("tabindex", "0");
  return h("figure", { class: "scatter" }, h("figcaption", {}, title, h("small", {}, ` ${note}`)), svg);
}
function steps(event) {
  const points = [...event.currentTarget.querySelectorAll(".point")];
  const place = points.indexOf(event.target);
  if (event.key === "Enter" || event.key === " ") event.target.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  else {
    const across = (point) => Number(point.dataset.x);
    const order = [...points].sort((a, b) => across(a) - across(b));
    const next = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (next === void 0 || place < 0) return;
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
function legend(title, looks, colors) {
  return h("ul", { class: "legend" }, h("li", { class: "meaning" }, `${title}:`), [...looks.values()].map(({ label, color, shape }) => h(
    "li",
    {},
    s("svg", { class: "sample", viewBox: "0 0 14 14", width: 14, height: 14, "aria-hidden": "true" }, marker(shape, 7, 7, 4.5, { fill: color })),
    label
  )));
}
function front(points) {
  const order = [...points].sort((a, b) => b.x - a.x || b.y - a.y);
  const best = [];
  for (const point of order) if (best.length === 0 || point.y > best.at(-1).y) best.push(point);
  return best.reverse();
}

// src/compare.js
var MOST_ROWS = 300;
var MOST_PANELS = 8;
var STATISTICS = {
  within_pearson: "within targets, Pearson",
  truth_auroc: "ground truth, AUROC",
  faithfulness: "faithfulness (mean)",
  pc_pearson: "confidence, Pearson",
  pc_kendall: "confidence, Kendall",
  pc_spearman: "confidence, Spearman",
  ne_pearson: "entropy, Pearson",
  ne_kendall: "entropy, Kendall",
  ne_spearman: "entropy, Spearman",
  p_auroc: "prediction, AUROC"
};
var REDUCED = { removal: "edge deleted", weight: "weight set to 0" };
var REGULARISES = /weight_decay|dropout|penalt|entropy|sparsity|smooth|l1|l2|lambda/i;
var FLOORS = { 0.01: "within 1 point of the best", 0.05: "within 5 points of the best", 0.1: "within 10 points of the best", Infinity: "any" };
var [ALL, METHOD, NONE] = ["", "", ""];
var Comparison = class {
  /**
   * @param data {runs: {name, settings, metrics}, methods: {name, label, color}}
   * @param open Is told the run to open.
   * @param state What to look at first.
   */
  constructor({ runs, methods }, open, state = {}) {
    this.runs = runs;
    this.open = open;
    this.qualities = qualitiesOf(runs);
    this.outcome = outcomeOf(runs);
    this.settings = settingsOf(runs);
    this.methods = methods.filter(({ name }) => this.qualities.some(({ tag }) => runs.some((run) => tag(name) in run.metrics)));
    this.short = shortNames(runs.map(({ name }) => name));
    const varied = this.settings.filter(({ name }) => name !== "seed");
    const [over, color, panels] = varied.length > 0 ? orderOfAxes(varied) : this.settings;
    this.state = {
      quality: this.qualities[0]?.key,
      method: ALL,
      over: over?.name,
      color: state.method ? (color ?? over)?.name ?? METHOD : METHOD,
      panels: panels?.name ?? NONE,
      floor: "0.05",
      means: false,
      find: "",
      sort: "name",
      down: false,
      run: null,
      ...state
    };
    this.firstColor = (color ?? over)?.name ?? METHOD;
    this.charts = h("div", { class: "charts" });
    this.table = h("div", { class: "scroller", role: "region", tabindex: 0, "aria-label": "Runs" });
    this.note = h("p", { class: "notes", role: "status" });
    this.element = h("div", { class: "comparison" }, this.#controls(), this.charts, h("section", { "aria-label": "Runs" }, this.table, this.note));
  }
  #controls() {
    const { state, settings } = this;
    this.selects = {};
    const field = (label, options, key) => {
      const { element, control } = select(label, options, state[key], (value) => this.set({ [key]: value }));
      this.selects[key] = control;
      return element;
    };
    const names = settings.map(({ name, title }) => [name, title]);
    const find = h("input", { type: "search", placeholder: "Find runs", "aria-label": "Find runs by name", input: () => this.set({ find: find.value }) });
    find.value = state.find;
    const means = h("input", { type: "checkbox", change: () => this.set({ means: means.checked }) });
    means.checked = state.means;
    return h(
      "div",
      { class: "controls" },
      field("Quality", this.qualities.map(({ key, text }) => [key, text]), "quality"),
      field("Method", [[ALL, "all methods"], ...this.methods.map(({ name, label }) => [name, label])], "method"),
      names.length > 0 ? [
        field("Against", names, "over"),
        field("Colour by", [[METHOD, "method"], ...names], "color"),
        names.length > 2 ? field("A chart for each", [[NONE, "(one chart)"], ...names], "panels") : null
      ].filter(Boolean) : null,
      field(this.outcome.title === "AUC" ? "AUC" : "Accuracy", Object.entries(FLOORS).sort(([a], [b]) => a - b), "floor"),
      h("div", { class: "field" }, h("span", {}, "Runs"), find),
      settings.some(({ name }) => name === "seed") ? h("label", { class: "check" }, means, "means over seeds") : null
    );
  }
  /** Look at something else. Colours show methods where all are drawn, and the values of a setting where one is. */
  set(changes) {
    const { state } = this;
    Object.assign(state, changes);
    if (changes.method === ALL) state.color = METHOD;
    else if (changes.method && state.color === METHOD) state.color = this.firstColor;
    if (changes.color === METHOD) state.method = ALL;
    else if (changes.color && state.method === ALL) state.method = this.methods[0].name;
    for (const [key, control] of Object.entries(this.selects)) control.value = state[key];
    this.draw(this.colors);
  }
  /** The runs that are asked for, or the means of those that differ in their seed only: {name, runs, settings, metrics}. */
  #rows() {
    const asked = this.state.find.trim().toLowerCase();
    const runs = this.runs.filter((run) => run.name.toLowerCase().includes(asked));
    if (!this.state.means) return runs.map((run) => ({ ...run, title: this.short.get(run.name), runs: [run] }));
    const groups = /* @__PURE__ */ new Map();
    for (const run of runs) {
      const key = JSON.stringify(this.settings.filter(({ name }) => name !== "seed").map(({ name }) => run.settings[name]));
      groups.set(key, [...groups.get(key) ?? [], run]);
    }
    return [...groups.values()].map((members) => {
      const tags = [...new Set(members.flatMap((run) => Object.keys(run.metrics)))];
      const { seed, ...settings } = members[0].settings;
      return {
        name: members[0].name,
        title: withoutSeed(this.short.get(members[0].name)),
        runs: members,
        settings,
        metrics: Object.fromEntries(tags.map((tag) => [tag, mean(members.map((run) => run.metrics[tag]).filter(isNumber))]))
      };
    });
  }
  /** Draw everything in these colours. */
  draw(colors) {
    this.colors = colors;
    const { state } = this;
    const rows = this.#rows();
    const quality = this.qualities.find(({ key }) => key === state.quality);
    const best = Math.max(...rows.map(this.outcome.of).filter(isNumber));
    const points = Number(state.floor) * (best > 1 ? 100 : 1);
    const floor = Number.isFinite(best - points) ? best - points - 1e-9 : null;
    const chart = { rows, quality, floor, ...this.#coloured() };
    const charts = [this.#tradeOff(chart), ...state.over ? this.#overSetting(chart) : []].filter(Boolean);
    this.charts.replaceChildren(...charts, charts.length > 0 ? legend(chart.title, chart.looks, colors) : h("p", { class: "notes" }, "Charts that compare runs appear here as soon as there are two."));
    this.#drawTable(chart);
  }
  /** What has a colour: {title, looks, key(row, method)}. */
  #coloured() {
    const { state, methods, colors } = this;
    if (state.color === METHOD) {
      return { title: "method", looks: looksOf(methods.map(({ name: name2, label, color }) => [name2, label, color]), colors), key: (_, method) => method };
    }
    const { name, title, values } = this.settings.find((setting) => setting.name === state.color);
    return { title, looks: looksOf(values.map((value) => [String(value), settingText(value), null]), colors), key: (row) => String(row.settings[name]) };
  }
  /** The points of all rows by the chosen methods: x(row) against y(row, method). */
  #points({ rows, floor, key }, x, y, methods, describe2) {
    return rows.flatMap((row) => methods.map((method) => ({
      key: key(row, method),
      method,
      row,
      x: x(row),
      y: y(row, method),
      run: row.name,
      faint: floor !== null && !(this.outcome.of(row) >= floor),
      text: `${row.title}: ${describe2(row, method)}`
    }))).filter((point) => isNumber(point.x) && isNumber(point.y));
  }
  #tradeOff(chart) {
    const { state, colors } = this;
    const { quality, floor, looks } = chart;
    const methods = state.method === ALL ? this.methods.map(({ name }) => name) : [state.method];
    const value = (row, method) => row.metrics[quality.tag(method)];
    const { title, of } = this.outcome;
    const points = this.#points(
      chart,
      of,
      value,
      methods,
      (row, method) => `${title} ${number(of(row))}, ${this.label(method)} ${number(value(row, method))}`
    );
    if (points.length < 2) return null;
    const best = state.method === ALL ? [] : front(points.filter(({ faint }) => !faint));
    const told = best.length > 0 ? "the line joins what no other beats in both" : "";
    return scatter({
      title: `${quality.text}, against ${title}`,
      note: [told, floor === null ? "" : "faint: not accurate enough"].filter(Boolean).join("; "),
      xTitle: title,
      points,
      looks,
      colors,
      choose: this.open,
      chosen: state.run,
      limit: floor,
      joined: best.length > 1 ? [{ dash: "4 3", points: best.map(({ x, y }) => [x, y]) }] : []
    });
  }
  /** Quality, and accuracy, over the values of a setting; a pair of charts for each value of another one. */
  #overSetting(chart) {
    const { state, colors, outcome } = this;
    const { quality, looks } = chart;
    const { title, values } = this.settings.find(({ name }) => name === state.over);
    const places = new Map(values.map((value2, place) => [String(value2), place]));
    const x = (row) => places.get(String(row.settings[state.over]));
    const where = (row) => `at ${title} ${settingText(row.settings[state.over])}`;
    const value = (row, method) => row.metrics[quality.tag(method)];
    const methods = state.method === ALL ? this.methods.map(({ name }) => name) : [state.method];
    const all = [
      { title: `${quality.text}, against ${title}`, points: this.#points(chart, x, value, methods, (row, method) => `${this.label(method)} ${number(value(row, method))} ${where(row)}`) },
      {
        title: `${outcome.title}, against ${title}`,
        points: this.#points({ ...chart, key: state.color === METHOD ? () => null : chart.key }, x, outcome.of, [state.method], (row) => `${outcome.title} ${number(outcome.of(row))} ${where(row)}`)
      }
    ].filter(({ points }) => points.length > 0);
    const panels = this.settings.find(({ name }) => name === state.panels && name !== state.over);
    return all.flatMap((one) => {
      const range = [Math.min(...one.points.map(({ y }) => y)), Math.max(...one.points.map(({ y }) => y))];
      const parts = panels ? panels.values.slice(0, MOST_PANELS).map((value2) => [
        ` where ${panels.title} is ${settingText(value2)}`,
        one.points.filter(({ row }) => String(row.settings[panels.name]) === String(value2))
      ]) : [["", one.points]];
      return parts.filter(([, points]) => points.length > 0).map(([part, points]) => scatter({
        title: one.title + part,
        note: "lines join means",
        xTitle: title,
        points,
        looks,
        colors,
        labels: values.map(settingText),
        range,
        choose: this.open,
        chosen: state.run,
        joined: [...new Set(points.map(({ key }) => key))].map((key) => ({ key, points: meansOf(points.filter((point) => point.key === key)) }))
      }));
    });
  }
  label(method) {
    return this.methods.find(({ name }) => name === method)?.label ?? method;
  }
  #drawTable({ rows, quality, floor }) {
    const { state, outcome } = this;
    const shown = this.settings.filter(({ name }) => !(state.means && name === "seed"));
    const columns = [
      { key: "name", title: state.means ? "setting" : "run", value: (row) => row.name },
      { key: "accuracy", title: outcome.title, value: outcome.of, text: fixed },
      ...this.methods.map(({ name, label }) => ({ key: name, title: label, value: (row) => row.metrics[quality?.tag(name)], text: fixed })),
      ...shown.map(({ name, title }) => ({ key: `setting ${name}`, title, value: (row) => row.settings[name], text: settingText }))
    ];
    const by = columns.find(({ key }) => key === state.sort) ?? columns[0];
    const order = by.key === "name" ? [...rows] : [...rows].sort((a, b) => compare(by.value(a), by.value(b)));
    if (state.down) order.reverse();
    const head = columns.map((column) => h(
      "th",
      { scope: "col", class: column.key === "name" ? null : "number", "aria-sort": column === by ? state.down ? "descending" : "ascending" : null },
      h(
        "button",
        { type: "button", click: () => this.set({ sort: column.key, down: column === by ? !state.down : column.key !== "name" }) },
        column.title,
        column === by ? h("span", { class: "arrow", "aria-hidden": "true" }, state.down ? "▼" : "▲") : null
      )
    ));
    const link = (run, text) => h("button", { type: "button", class: "open", title: run.name, click: () => this.open(run.name) }, text);
    const cell = (column, row) => {
      if (column.key === "name") {
        return h("th", { scope: "row" }, row.runs.length === 1 ? link(row.runs[0], row.title) : [row.title, " ", h("small", {}, "seeds"), row.runs.map((run) => link(run, settingText(run.settings.seed)))].flat());
      }
      const value = column.value(row);
      return h("td", { class: "number" }, value === void 0 ? "" : column.text(value));
    };
    const classOf = (row) => [row.runs.some(({ name }) => name === state.run) ? "chosen" : "", floor !== null && !(outcome.of(row) >= floor) ? "below" : ""].join(" ").trim();
    this.table.replaceChildren(h(
      "table",
      { class: "edges runs" },
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, order.slice(0, MOST_ROWS).map((row) => h("tr", { "data-run": row.name, class: classOf(row) || null }, columns.map((column) => cell(column, row)))))
    ));
    const notes = quality ? [`${quality.text} of each method`] : [];
    if (floor !== null) notes.push(`faint: ${outcome.title} below ${number(floor, 3)}`);
    if (order.length > MOST_ROWS) notes.push(`the first ${MOST_ROWS} of ${whole(order.length)} are listed: find others by name`);
    if (state.find) notes.push(`${count(order.reduce((sum, row) => sum + row.runs.length, 0), "run")} of ${whole(this.runs.length)}`);
    this.note.textContent = notes.join("; ");
  }
};
function qualitiesOf(runs) {
  const found = /* @__PURE__ */ new Map();
  for (const tag of new Set(runs.flatMap((run) => Object.keys(run.metrics)))) {
    const [prefix, method, ...rest] = tag.split("/");
    if (prefix !== "explain" || method === "effects" || rest.length === 0) continue;
    const [statistic, protocol] = [rest.at(-1), rest.length > 1 ? rest[0] : ""];
    const text = (STATISTICS[statistic] ?? statistic.replaceAll("_", " ")) + (protocol ? `, ${REDUCED[protocol] ?? protocol}` : "");
    found.set(rest.join("/"), { key: rest.join("/"), text, statistic, protocol, tag: (name) => [prefix, name, ...rest].join("/") });
  }
  const order = Object.keys(STATISTICS);
  const rank = ({ statistic }) => order.includes(statistic) ? order.indexOf(statistic) : order.length;
  return [...found.values()].sort((a, b) => rank(a) - rank(b) || byProtocol(a.protocol, b.protocol) || compare(a.key, b.key));
}
function settingsOf(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  const settings = /* @__PURE__ */ new Map();
  for (const name of names.sort((a, b) => a.length - b.length || compare(a, b))) {
    const values = runs.map((run) => run.settings[name]);
    const distinct = [...new Map(values.filter((value) => value !== void 0).map((value) => [String(value), value])).values()].sort(compare);
    if (distinct.length < 2) continue;
    const key = JSON.stringify(values.map((value) => distinct.findIndex((other) => String(other) === String(value))));
    if (settings.has(key)) settings.get(key).title += `, ${name}`;
    else settings.set(key, { name, title: name, values: distinct });
  }
  return [...settings.values()].sort((a, b) => REGULARISES.test(b.name) - REGULARISES.test(a.name) || (a.name === "seed") - (b.name === "seed") || compare(a.name, b.name));
}
function orderOfAxes(settings) {
  const isNumeric = ({ values }) => values.every((value) => typeof value === "number");
  const [over] = [...settings].sort((a, b) => isNumeric(b) - isNumeric(a) || b.values.length - a.values.length);
  const rest = settings.filter((setting) => setting !== over).sort((a, b) => isNumeric(a) - isNumeric(b) || b.values.length - a.values.length);
  return [over, ...rest];
}
function shortNames(names) {
  let common = names.length > 1 ? names[0] : "";
  for (const name of names) while (!name.startsWith(common)) common = common.slice(0, -1);
  const cut = Math.max(...["/", "-", ",", " "].map((sign) => common.lastIndexOf(sign))) + 1;
  return new Map(names.map((name) => [name, name.slice(cut)]));
}
var withoutSeed = (name) => name.replace(/[-/, ]*\bseed[=_-]?\d+\b/, "") || name;
function outcomeOf(runs) {
  const has = (word2) => (name) => name.toLowerCase().includes(word2) && !name.startsWith("explain/");
  const isLinks = runs.every((run) => !Object.keys(run.metrics).some(has("acc"))) && runs.some((run) => Object.keys(run.metrics).some(has("auc")));
  const word = isLinks ? "auc" : "acc";
  const of = (run) => {
    const names = Object.keys(run.metrics).filter(has(word));
    const name = names.find((one) => one === `val/${word}`) ?? names.find((one) => one.toLowerCase().includes("val")) ?? names[0];
    return name === void 0 ? void 0 : run.metrics[name];
  };
  return { title: isLinks ? "AUC" : "accuracy", of };
}
function settingText(value) {
  if (typeof value === "number") return String(Number(value.toPrecision(6)));
  const text = String(value ?? "");
  return /^([A-Za-z_]\w*\.)+[A-Za-z_]\w*$/.test(text) ? text.slice(text.lastIndexOf(".") + 1) : text;
}
var isNumber = (value) => typeof value === "number" && Number.isFinite(value);
var mean = (values) => values.length > 0 ? values.reduce((sum, value) => sum + value, 0) / values.length : void 0;
function meansOf(points) {
  const places = [...new Set(points.map(({ x }) => x))].sort((a, b) => a - b);
  return places.map((place) => [place, mean(points.filter(({ x }) => x === place).map(({ y }) => y))]);
}
function compare(a, b) {
  if (a === b) return 0;
  if (a === void 0 || a === null) return -1;
  if (b === void 0 || b === null) return 1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

// src/tab.js
async function render() {
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: new URL("explorer.css", import.meta.url).href });
  document.head.append(style, h("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }));
  document.documentElement.lang = "en";
  document.title = "Explanations";
  const root = h("div", { class: "attree tab" });
  document.body.style.margin = "0";
  document.body.append(root);
  const tab = new Tab(root, (path, query) => ask(path, query), () => import(new URL("explorer.js", import.meta.url).href));
  await tab.load();
}
async function ask(path, query = {}) {
  const answer = await fetch(new URL(`../${path}?${new URLSearchParams(query)}`, import.meta.url)).catch(() => {
    throw new Error("TensorBoard does not answer: is it still running?");
  });
  if (answer.ok) return answer.json();
  const said = (answer.headers.get("Content-Type") ?? "").startsWith("text/plain") ? await answer.text() : "";
  throw new Error(said.trim() || `TensorBoard answered ${answer.status} (${path})`);
}
var Tab = class {
  /** `ask(path, query)` answers questions about runs, `explorer()` loads the explorer when it is first needed. */
  constructor(root, ask_, explorer) {
    this.root = root;
    this.ask = ask_;
    this.explorer = explorer;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.comparison && this.#draw());
  }
  /** Read all runs again. */
  async load() {
    this.root.dataset.theme = ambientTheme();
    try {
      this.data = await this.ask("runs");
    } catch (error) {
      this.root.replaceChildren(this.#header(), h("main", {}, h("p", { class: "wrong", role: "alert" }, `The runs could not be read: ${error.message}`)));
      return;
    }
    this.data.runs.length > 0 ? this.#start() : this.#empty();
  }
  #header(about = "") {
    const reload = h("button", { type: "button", click: () => this.load() }, "Reload");
    return h("header", {}, h("div", {}, h("h1", {}, "How well attention explains"), h("p", { class: "about" }, about)), reload);
  }
  #empty() {
    this.root.replaceChildren(this.#header(), h("main", {}, h(
      "section",
      { class: "empty" },
      h("h2", {}, "No run here has explanations yet"),
      h("p", {}, "TensorBoard looks in ", h("code", {}, this.data.logdir || "the folders it was started with"), ". A run appears here as soon as it has measured its explanations once:"),
      h(
        "ul",
        {},
        h("li", {}, "with attree: ", h("code", {}, "attree fit --config infection")),
        h("li", {}, "in any Lightning project: ", h("code", {}, 'Trainer(callbacks=[attree.ExplainCallback()], logger=TensorBoardLogger("logs"))'))
      ),
      h("p", {}, "Then press Reload.")
    )));
  }
  #start() {
    const { runs, logdir } = this.data;
    this.comparison = new Comparison(this.data, (name) => this.choose(name), this.comparison?.state);
    this.run = h("section", { class: "run", "aria-label": "Chosen run" });
    const about = `${count(runs.length, "run")} with explanations in ${logdir || "several folders"}`;
    this.root.replaceChildren(this.#header(about), h("main", {}, this.comparison.element, this.run));
    const { run } = this.comparison.state;
    this.choose(runs.some(({ name }) => name === run) ? run : runs.at(-1).name, false);
  }
  #draw() {
    this.root.dataset.theme = ambientTheme();
    this.comparison.draw(palette(this.root.dataset.theme));
  }
  /** Open a run: its curves, and the explorer of what it saved. */
  async choose(name, scroll = true) {
    const run = this.data.runs.find((one) => one.name === name);
    this.comparison.state.run = name;
    this.#draw();
    const [curves, explorer] = [h("div", {}, h("p", { class: "notes" }, "reading curves …")), h("div", { class: "saved" })];
    this.run.replaceChildren(h("h2", {}, name), curves, explorer);
    if (scroll) this.run.scrollIntoView({ block: "start" });
    const isCurrent = () => this.comparison.state.run === name && this.run.contains(curves);
    try {
      const series = await this.ask("curves", { run: name });
      if (!isCurrent()) return;
      const label = Object.fromEntries(this.data.methods.map((method) => [method.name, method.label]));
      const panels = curvePanels({ curves: series, methods: this.data.methods, label, statistics: STATISTICS }, palette(this.root.dataset.theme));
      curves.replaceChildren(panels ?? h("p", { class: "notes" }, "This run has no curves."));
    } catch (error) {
      curves.replaceChildren(h("p", { class: "wrong" }, `Its curves could not be read: ${error.message}`));
    }
    if (isCurrent()) await this.#explore(run, explorer);
  }
  async #explore(run, place) {
    if (run.pages.length === 0) {
      place.replaceChildren(h(
        "p",
        { class: "notes" },
        "This run has saved no explanations to look at: a fit saves them at its end, and ",
        h("code", {}, `attree explain ${typed([this.data.logdir, run.name === "." ? "" : run.name].filter(Boolean).join("/"))}`),
        " at any time."
      ));
      return;
    }
    const texts = run.pages.map((page2) => [page2, pageName(page2)]);
    const page = run.pages.includes("explain/page.html") ? "explain/page.html" : run.pages.at(-1);
    const body = h("div", { class: "body" });
    const show = async (chosen) => {
      body.replaceChildren(h("p", { class: "notes" }, "reading explanations …"));
      try {
        const [content, { mount }] = await Promise.all([this.ask("page", { run: run.name, page: chosen }), this.explorer()]);
        const root = h("div");
        body.replaceChildren(root);
        mount(root, { ...content, curves: [] });
      } catch (error) {
        body.replaceChildren(h("p", { class: "wrong" }, `They could not be shown: ${error.message}`));
      }
    };
    place.replaceChildren(texts.length > 1 ? select("Explanations", texts, page, show).element : "", body);
    await show(page);
  }
};
var typed = (path) => /^[\w@%+=:,./-]*$/.test(path) ? path : `'${path.replaceAll("'", `'\\''`)}'`;
function pageName(page) {
  const step = /(\d+)\.json$/.exec(page);
  return step ? `at step ${whole(Number(step[1]))}` : page === "page.html" ? "at the end of the fit" : "by attree explain";
}
var embedded = globalThis.document?.getElementById("attree-runs");
if (embedded) {
  const data = JSON.parse(embedded.textContent);
  const pages = new Map(data.runs.map((run) => [run.name, run.page]));
  const comparison = new Comparison(data, (name) => pages.get(name) && location.assign(pages.get(name)), { means: true, method: data.methods[0]?.name ?? "" });
  const root = document.getElementById("attree");
  const draw = () => {
    root.dataset.theme = ambientTheme();
    comparison.draw(palette(root.dataset.theme));
  };
  root.classList.add("attree", "tab");
  root.replaceChildren(comparison.element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
}
export {
  Tab,
  render
};
