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
var LABELS = { acc: "accuracy", within_pearson: "within targets, Pearson", truth_auroc: "ground truth, AUROC", loss: "loss" };
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
  const steps = [...panels.values()].flat().flatMap((curve) => curve.points.map(([step]) => step));
  const range = [Math.min(...steps), Math.max(...steps)];
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
var CORNERS = {
  diamond: [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  triangle: [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
  cross: [[-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]],
  "triangle down": [[0, 1.2], [1.1, -0.8], [-1.1, -0.8]]
};
var SHAPES = ["circle", "square", ...Object.keys(CORNERS)];
function scatter({ title, xTitle, yTitle, points, methods, labels = null, joined = [], choose, chosen, colors }) {
  const range = (values) => {
    const [low2, high2] = [Math.min(...values), Math.max(...values)];
    const room = (high2 - low2 || Math.abs(high2) || 1) * 0.07;
    return [low2 - room, high2 + room];
  };
  const [left, right] = labels ? [-0.5, labels.length - 0.5] : range(points.map((point) => point.x));
  const [low, high] = range(points.map((point) => point.y));
  const x = (value) => SIZE2.left + (value - left) / (right - left || 1) * (SIZE2.width - SIZE2.left - SIZE2.right);
  const y = (value) => SIZE2.top + (1 - (value - low) / (high - low || 1)) * (SIZE2.height - SIZE2.top - SIZE2.bottom);
  const look = new Map(methods.map(({ name, color }, place) => [name, [standingOut(colors, color), SHAPES[place % SHAPES.length]]]));
  const text = (px, py, anchor, content, size = 11) => s("text", { x: px, y: py, "text-anchor": anchor, "font-size": size, fill: colors.muted }, content);
  const parts = [];
  for (const value of ticks(low, high, 5)) {
    parts.push(
      s("line", { x1: SIZE2.left, x2: SIZE2.width - SIZE2.right, y1: y(value), y2: y(value), stroke: colors.faint }),
      text(SIZE2.left - 6, y(value) + 4, "end", number(value))
    );
  }
  const bottom = SIZE2.height - SIZE2.bottom;
  const every = labels ? Math.ceil(labels.length / 9) : 1;
  const marks = labels ? labels.map((label, place) => [place, label]).filter(([place]) => place % every === 0) : ticks(left, right, 5).map((value) => [value, number(value)]);
  for (const [value, label] of marks) parts.push(text(x(value), bottom + 16, "middle", label));
  parts.push(text((SIZE2.left + SIZE2.width - SIZE2.right) / 2, SIZE2.height - 8, "middle", xTitle, 12));
  for (const line of joined) {
    parts.push(s("polyline", {
      points: line.points.map(([px, py]) => `${x(px).toFixed(1)},${y(py).toFixed(1)}`).join(" "),
      fill: "none",
      stroke: line.color ? standingOut(colors, line.color) : colors.ink,
      "stroke-width": 1.6,
      "stroke-opacity": 0.75,
      "stroke-dasharray": line.dash ?? null
    }));
  }
  for (const point of points) {
    const [color, shape] = look.get(point.method) ?? [colors.ink, "circle"];
    const isChosen = point.run === chosen;
    parts.push(s(
      "g",
      {
        class: "point",
        role: "button",
        tabindex: -1,
        "data-run": point.run,
        "data-method": point.method,
        "aria-label": `${point.text}. Open this run`,
        click: () => choose(point.run),
        keydown: (event) => event.key === "Enter" && choose(point.run)
      },
      marker(shape, x(point.x), y(point.y), isChosen ? 6 : 4, { fill: color, "fill-opacity": isChosen ? 1 : 0.72, stroke: isChosen ? colors.ink : "none", "stroke-width": 1.5 }),
      s("title", {}, point.text)
    ));
  }
  const svg = s("svg", { role: "group", viewBox: `0 0 ${SIZE2.width} ${SIZE2.height}`, "aria-label": `${title}: ${points.length} points; the table lists the runs` }, parts);
  return h("figure", { class: "scatter" }, h("figcaption", {}, title, h("small", {}, ` ${yTitle}`)), svg);
}
function marker(shape, x, y, r, attributes) {
  if (shape === "circle") return s("circle", { cx: x, cy: y, r, ...attributes });
  if (shape === "square") return s("rect", { x: x - r * 0.9, y: y - r * 0.9, width: r * 1.8, height: r * 1.8, ...attributes });
  const corners = CORNERS[shape];
  return s("polygon", { points: corners.map(([dx, dy]) => `${x + dx * r},${y + dy * r}`).join(" "), ...attributes });
}
function methodLegend(methods, colors) {
  return h("ul", { class: "legend" }, methods.map(({ label, color }, place) => h(
    "li",
    {},
    s(
      "svg",
      { class: "sample", viewBox: "0 0 14 14", width: 14, height: 14, "aria-hidden": "true" },
      marker(SHAPES[place % SHAPES.length], 7, 7, 4.5, { fill: standingOut(colors, color) })
    ),
    label
  )));
}
function front(points) {
  const order = [...points].sort((a, b) => b.x - a.x || b.y - a.y);
  const kept = [];
  for (const point of order) if (kept.length === 0 || point.y > kept.at(-1).y) kept.push(point);
  return kept.reverse();
}

// src/tab.js
var MOST_ROWS = 300;
var STATISTICS = {
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
var REGULARISES = /weight_decay|dropout|penalt|entropy|sparsity|smooth|l1|l2|lambda/i;
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
  const answer = await fetch(new URL(`../${path}?${new URLSearchParams(query)}`, import.meta.url));
  if (!answer.ok) throw new Error(`TensorBoard answered ${answer.status} (${path})`);
  return answer.json();
}
var Tab = class {
  /** `ask(path, query)` answers questions about runs, `explorer()` loads the explorer when it is first needed. */
  constructor(root, ask_, explorer) {
    this.root = root;
    this.ask = ask_;
    this.explorer = explorer;
    this.state = { statistic: null, over: null, method: null, find: "", run: null, page: null, sort: "name", down: false };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.data && this.#draw());
  }
  /** Read all runs again. */
  async load() {
    this.root.dataset.theme = ambientTheme();
    try {
      this.data = await this.ask("runs");
    } catch (error) {
      this.root.replaceChildren(this.#header(), h("main", {}, h("p", { class: "wrong", role: "alert" }, `The runs could not be read: ${error.message}.`)));
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
    const { runs } = this.data;
    const qualities = qualitiesOf(runs);
    const settings = settingsOf(runs);
    const { state } = this;
    if (!qualities.some(({ key }) => key === state.statistic)) state.statistic = qualities[0].key;
    if (!settings.some(({ name }) => name === state.over)) state.over = settings[0]?.name ?? null;
    if (!this.data.methods.some(({ name }) => name === state.method)) state.method = this.data.methods[0].name;
    this.qualities = qualities;
    this.settings = settings;
    const controls = [
      select("Quality", qualities.map(({ key, text }) => [key, text]), state.statistic, (statistic) => this.#set({ statistic })),
      settings.length > 0 ? select("Against", settings.map(({ name }) => [name, name]), state.over, (over) => this.#set({ over })) : null,
      select("Front of", this.data.methods.map(({ name, label }) => [name, label]), state.method, (method) => this.#set({ method }))
    ].filter(Boolean);
    const find = h("input", { type: "search", placeholder: "Find runs", "aria-label": "Find runs by name", input: () => this.#set({ find: find.value }) });
    find.value = state.find;
    this.charts = h("div", { class: "charts" });
    this.table = h("div", { class: "scroller", role: "region", tabindex: 0, "aria-label": "Runs" });
    this.note = h("p", { class: "notes", role: "status" });
    this.run = h("section", { class: "run", "aria-label": "Chosen run" });
    this.root.replaceChildren(
      this.#header(`${count(runs.length, "run")} with explanations in ${this.data.logdir || "several folders"}`),
      h(
        "main",
        {},
        h("div", { class: "controls" }, controls.map((control) => control.element), h("div", { class: "field" }, h("span", {}, "Runs"), find)),
        this.charts,
        h("section", { "aria-label": "Runs" }, this.table, this.note),
        this.run
      )
    );
    this.#draw();
    const known = runs.some((run) => run.name === state.run);
    this.choose(known ? state.run : runs.at(-1).name, false);
  }
  #set(changes) {
    Object.assign(this.state, changes);
    this.#draw();
  }
  get #shown() {
    const asked = this.state.find.trim().toLowerCase();
    return this.data.runs.filter((run) => run.name.toLowerCase().includes(asked));
  }
  #draw() {
    this.root.dataset.theme = ambientTheme();
    const colors = palette(this.root.dataset.theme);
    const { state, data } = this;
    const runs = this.#shown;
    const quality = this.qualities.find(({ key }) => key === state.statistic);
    const value = (run, method) => run.metrics[quality.tag(method)];
    const label = Object.fromEntries(data.methods.map((one) => [one.name, one.label]));
    const chosen = { choose: (run) => this.choose(run), chosen: state.run, colors, methods: data.methods };
    const charts = [];
    if (state.over !== null) {
      charts.push(...this.#againstSetting(runs, value, quality, label, chosen));
    }
    const pareto = runs.map((run) => ({ run: run.name, method: state.method, x: accuracy(run), y: value(run, state.method) })).filter((point) => isNumber(point.x) && isNumber(point.y)).map((point) => ({ ...point, text: `${point.run}: accuracy ${number(point.x)}, ${label[state.method]} ${number(point.y)}` }));
    if (pareto.length > 1) {
      const best = front(pareto);
      charts.push(scatter({
        ...chosen,
        title: `Front of ${label[state.method]}`,
        yTitle: `${quality.text}, against accuracy; the line joins runs that no other beats in both`,
        xTitle: "accuracy",
        points: pareto,
        joined: [{ color: null, dash: "4 3", points: best.map((point) => [point.x, point.y]) }]
      }));
    }
    const alone = h("p", { class: "notes" }, "Charts that compare runs appear here as soon as there are two.");
    this.charts.replaceChildren(...charts, charts.length > 0 ? methodLegend(data.methods, colors) : alone);
    this.#drawTable(runs, quality, label);
  }
  /** Quality of every method, and accuracy, over the values of a setting. */
  #againstSetting(runs, value, quality, label, chosen) {
    const { over } = this.state;
    const places = this.settings.find(({ name }) => name === over).values;
    const place = new Map(places.map((one, number_) => [String(one), number_]));
    const known = runs.filter((run) => place.has(String(run.settings[over])));
    const at = (run) => place.get(String(run.settings[over]));
    const labels = places.map((one) => settingText(one));
    const points = known.flatMap((run) => this.data.methods.map(({ name }) => ({ run: run.name, method: name, x: at(run), y: value(run, name) }))).filter((point) => isNumber(point.y)).map((point) => ({ ...point, text: `${point.run}: ${label[point.method]} ${number(point.y)} at ${over} ${labels[point.x]}` }));
    const means = (own) => labels.map((_, x) => {
      const values = own.filter((point) => point.x === x).map((point) => point.y);
      return values.length > 0 ? [x, values.reduce((sum, one) => sum + one, 0) / values.length] : null;
    }).filter(Boolean);
    const charts = [];
    if (points.length > 0) {
      charts.push(scatter({
        ...chosen,
        title: `${quality.text} against ${over}`,
        yTitle: "lines are means",
        xTitle: over,
        points,
        labels,
        joined: this.data.methods.map(({ name, color }) => ({ color, points: means(points.filter((point) => point.method === name)) }))
      }));
    }
    const accuracies = known.map((run) => ({ run: run.name, method: "", x: at(run), y: accuracy(run) })).filter((point) => isNumber(point.y)).map((point) => ({ ...point, text: `${point.run}: accuracy ${number(point.y)} at ${over} ${labels[point.x]}` }));
    if (accuracies.length > 0) {
      charts.push(scatter({ ...chosen, title: `accuracy against ${over}`, yTitle: "the line is the mean", xTitle: over, points: accuracies, labels, joined: [{ color: null, points: means(accuracies) }] }));
    }
    return charts;
  }
  #drawTable(runs, quality, label) {
    const { state } = this;
    const columns = [
      { key: "name", title: "run", value: (run) => run.name },
      { key: "accuracy", title: "accuracy", value: accuracy },
      ...this.data.methods.map(({ name }) => ({ key: name, title: label[name], value: (run) => run.metrics[quality.tag(name)] })),
      ...this.settings.map(({ name }) => ({ key: `setting ${name}`, title: name, value: (run) => run.settings[name] }))
    ];
    const by = columns.find(({ key }) => key === state.sort) ?? columns[0];
    const order = by.key === "name" ? [...runs] : [...runs].sort((a, b) => compare(by.value(a), by.value(b)));
    if (state.down) order.reverse();
    const head = columns.map((column) => h(
      "th",
      { scope: "col", class: column.key === "name" ? null : "number", "aria-sort": column === by ? state.down ? "descending" : "ascending" : null },
      h(
        "button",
        { type: "button", click: () => this.#set({ sort: column.key, down: column === by ? !state.down : column.key !== "name" }) },
        column.title,
        column === by ? h("span", { class: "arrow", "aria-hidden": "true" }, state.down ? "▼" : "▲") : null
      )
    ));
    const cell = (column, run) => {
      const own = column.value(run);
      if (column.key === "name") return h("th", { scope: "row" }, h("button", { type: "button", class: "open", click: () => this.choose(run.name) }, run.name));
      if (own === void 0) return h("td", { class: "number" });
      return h("td", { class: "number" }, column.key.startsWith("setting ") ? settingText(own) : fixed(own));
    };
    this.table.replaceChildren(h(
      "table",
      { class: "edges runs" },
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, order.slice(0, MOST_ROWS).map((run) => h("tr", { "data-run": run.name, class: run.name === state.run ? "chosen" : null }, columns.map((column) => cell(column, run)))))
    ));
    const notes = [`${quality.text} of each method`];
    if (order.length > MOST_ROWS) notes.push(`the first ${MOST_ROWS} of ${whole(order.length)} runs are listed: find others by name`);
    if (order.length < this.data.runs.length) notes.push(`${whole(order.length)} of ${whole(this.data.runs.length)} runs`);
    this.note.textContent = notes.join("; ");
  }
  /** Open a run: its curves, and the explorer of what it saved. */
  async choose(name, scroll = true) {
    const run = this.data.runs.find((one) => one.name === name);
    this.state.run = name;
    this.#draw();
    const [curves, explorer] = [h("div", {}, h("p", { class: "notes" }, "reading curves …")), h("div", { class: "saved" })];
    this.run.replaceChildren(h("h2", {}, name), curves, explorer);
    if (scroll) this.run.scrollIntoView({ block: "start" });
    const isCurrent = () => this.state.run === name && this.run.contains(curves);
    try {
      const found = await this.ask("curves", { run: name });
      if (!isCurrent()) return;
      const label = Object.fromEntries(this.data.methods.map((one) => [one.name, one.label]));
      const panels = curvePanels({ curves: found, methods: this.data.methods, label, statistics: STATISTICS }, palette(this.root.dataset.theme));
      curves.replaceChildren(panels ?? h("p", { class: "notes" }, "This run has no curves."));
    } catch (error) {
      curves.replaceChildren(h("p", { class: "wrong" }, `Its curves could not be read: ${error.message}.`));
    }
    if (isCurrent()) await this.#explore(run, explorer);
  }
  async #explore(run, place) {
    if (run.pages.length === 0) {
      place.replaceChildren(h(
        "p",
        { class: "notes" },
        "This run has saved no explanations to look at: a fit saves them at its end, and ",
        h("code", {}, `attree explain ${run.name}`),
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
        body.replaceChildren(h("p", { class: "wrong" }, `They could not be shown: ${error.message}.`));
      }
    };
    place.replaceChildren(texts.length > 1 ? select("Explanations", texts, page, show).element : "", body);
    await show(page);
  }
};
function qualitiesOf(runs) {
  const found = /* @__PURE__ */ new Map();
  for (const run of runs) {
    for (const tag of Object.keys(run.metrics)) {
      const [, , ...rest] = tag.split("/");
      if (!tag.startsWith("explain/") || rest.length === 0) continue;
      const [statistic, protocol] = [rest.at(-1), rest.length > 1 ? rest[0] : ""];
      const text = (STATISTICS[statistic] ?? statistic.replaceAll("_", " ")) + (protocol ? `, reduced by ${protocol}` : "");
      found.set(rest.join("/"), { key: rest.join("/"), text, statistic, protocol, tag: (method) => ["explain", method, ...rest].join("/") });
    }
  }
  const order = Object.keys(STATISTICS);
  const rank = ({ statistic }) => order.includes(statistic) ? order.indexOf(statistic) : order.length;
  return [...found.values()].sort((a, b) => rank(a) - rank(b) || byProtocol(a.protocol, b.protocol) || compare(a.key, b.key));
}
function settingsOf(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  return names.map((name) => ({ name, values: [...new Map(runs.map((run) => run.settings[name]).filter((one) => one !== void 0).map((one) => [String(one), one])).values()].sort(compare) })).filter(({ values }) => values.length > 1).sort((a, b) => REGULARISES.test(b.name) - REGULARISES.test(a.name) || (a.name === "seed") - (b.name === "seed") || compare(a.name, b.name));
}
function accuracy(run) {
  const names = Object.keys(run.metrics).filter((name) => name.toLowerCase().includes("acc") && !name.startsWith("explain/"));
  const own = names.find((name) => name === "val/acc") ?? names.find((name) => name.toLowerCase().includes("val")) ?? names[0];
  return own === void 0 ? void 0 : run.metrics[own];
}
function pageName(page) {
  const step = /(\d+)\.json$/.exec(page);
  return step ? `at step ${whole(Number(step[1]))}` : page === "page.html" ? "at the end of the fit" : "by attree explain";
}
var settingText = (value) => typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);
var isNumber = (value) => typeof value === "number" && Number.isFinite(value);
function compare(a, b) {
  if (a === b) return 0;
  if (a === void 0 || a === null) return -1;
  if (b === void 0 || b === null) return 1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}
export {
  Tab,
  render
};
