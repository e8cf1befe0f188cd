// TensorBoard's tab: all runs of the log folder, what their explanations are worth, and the explorer of each.

import { byProtocol, curvePanels } from "./curves.js";
import { h, select } from "./dom.js";
import { count, fixed, number, whole } from "./format.js";
import { ambientTheme, palette } from "./palette.js";
import { front, methodLegend, scatter } from "./scatter.js";

const MOST_ROWS = 300;
const STATISTICS = {
  truth_auroc: "ground truth, AUROC", faithfulness: "faithfulness (mean)", pc_pearson: "confidence, Pearson", pc_kendall: "confidence, Kendall",
  pc_spearman: "confidence, Spearman", ne_pearson: "entropy, Pearson", ne_kendall: "entropy, Kendall", ne_spearman: "entropy, Spearman",
  p_auroc: "prediction, AUROC",
};
const REGULARISES = /weight_decay|dropout|penalt|entropy|sparsity|smooth|l1|l2|lambda/i;

/** What TensorBoard calls. */
export async function render() {
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

export class Tab {
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
    this.root.replaceChildren(this.#header(), h("main", {}, h("section", { class: "empty" },
      h("h2", {}, "No run here has explanations yet"),
      h("p", {}, "TensorBoard looks in ", h("code", {}, this.data.logdir || "the folders it was started with"), ". A run appears here as soon as it has measured its explanations once:"),
      h("ul", {},
        h("li", {}, "with attree: ", h("code", {}, "attree fit --config infection")),
        h("li", {}, "in any Lightning project: ", h("code", {}, "Trainer(callbacks=[attree.ExplainCallback()], logger=TensorBoardLogger(\"logs\"))"))),
      h("p", {}, "Then press Reload."))));
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
      select("Front of", this.data.methods.map(({ name, label }) => [name, label]), state.method, (method) => this.#set({ method })),
    ].filter(Boolean);
    const find = h("input", { type: "search", placeholder: "Find runs", "aria-label": "Find runs by name", input: () => this.#set({ find: find.value }) });
    find.value = state.find;
    this.charts = h("div", { class: "charts" });
    this.table = h("div", { class: "scroller", role: "region", tabindex: 0, "aria-label": "Runs" });
    this.note = h("p", { class: "notes", role: "status" });
    this.run = h("section", { class: "run", "aria-label": "Chosen run" });
    this.root.replaceChildren(
      this.#header(`${count(runs.length, "run")} with explanations in ${this.data.logdir || "several folders"}`),
      h("main", {},
        h("div", { class: "controls" }, controls.map((control) => control.element), h("div", { class: "field" }, h("span", {}, "Runs"), find)),
        this.charts,
        h("section", { "aria-label": "Runs" }, this.table, this.note),
        this.run));
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
    const pareto = runs.map((run) => ({ run: run.name, method: state.method, x: accuracy(run), y: value(run, state.method) }))
      .filter((point) => isNumber(point.x) && isNumber(point.y))
      .map((point) => ({ ...point, text: `${point.run}: accuracy ${number(point.x)}, ${label[state.method]} ${number(point.y)}` }));
    if (pareto.length > 1) {
      const best = front(pareto);
      charts.push(scatter({
        ...chosen, title: `Front of ${label[state.method]}`, yTitle: `${quality.text}, against accuracy; the line joins runs that no other beats in both`,
        xTitle: "accuracy", points: pareto, joined: [{ color: null, dash: "4 3", points: best.map((point) => [point.x, point.y]) }],
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
    const points = known.flatMap((run) => this.data.methods.map(({ name }) => ({ run: run.name, method: name, x: at(run), y: value(run, name) })))
      .filter((point) => isNumber(point.y))
      .map((point) => ({ ...point, text: `${point.run}: ${label[point.method]} ${number(point.y)} at ${over} ${labels[point.x]}` }));
    const means = (own) => labels.map((_, x) => {
      const values = own.filter((point) => point.x === x).map((point) => point.y);
      return values.length > 0 ? [x, values.reduce((sum, one) => sum + one, 0) / values.length] : null;
    }).filter(Boolean);
    const charts = [];
    if (points.length > 0) {
      charts.push(scatter({
        ...chosen, title: `${quality.text} against ${over}`, yTitle: "lines are means", xTitle: over, points, labels,
        joined: this.data.methods.map(({ name, color }) => ({ color, points: means(points.filter((point) => point.method === name)) })),
      }));
    }
    const accuracies = known.map((run) => ({ run: run.name, method: "", x: at(run), y: accuracy(run) })).filter((point) => isNumber(point.y))
      .map((point) => ({ ...point, text: `${point.run}: accuracy ${number(point.y)} at ${over} ${labels[point.x]}` }));
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
      ...this.settings.map(({ name }) => ({ key: `setting ${name}`, title: name, value: (run) => run.settings[name] })),
    ];
    const by = columns.find(({ key }) => key === state.sort) ?? columns[0];
    const order = by.key === "name" ? [...runs] : [...runs].sort((a, b) => compare(by.value(a), by.value(b)));
    if (state.down) order.reverse();
    const head = columns.map((column) => h("th", { scope: "col", class: column.key === "name" ? null : "number", "aria-sort": column === by ? (state.down ? "descending" : "ascending") : null },
      h("button", { type: "button", click: () => this.#set({ sort: column.key, down: column === by ? !state.down : column.key !== "name" }) },
        column.title, column === by ? h("span", { class: "arrow", "aria-hidden": "true" }, state.down ? "▼" : "▲") : null)));
    const cell = (column, run) => {
      const own = column.value(run);
      if (column.key === "name") return h("th", { scope: "row" }, h("button", { type: "button", class: "open", click: () => this.choose(run.name) }, run.name));
      if (own === undefined) return h("td", { class: "number" });
      return h("td", { class: "number" }, column.key.startsWith("setting ") ? settingText(own) : fixed(own));
    };
    this.table.replaceChildren(h("table", { class: "edges runs" },
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, order.slice(0, MOST_ROWS).map((run) => h("tr", { "data-run": run.name, class: run.name === state.run ? "chosen" : null }, columns.map((column) => cell(column, run)))))));
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
      place.replaceChildren(h("p", { class: "notes" }, "This run has saved no explanations to look at: a fit saves them at its end, and ",
        h("code", {}, `attree explain ${run.name}`), " at any time."));
      return;
    }
    const texts = run.pages.map((page) => [page, pageName(page)]);
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
}

/** Every statistic that some run has: {key, text, tag(method)}; ground truth first, then faithfulness by protocol. */
function qualitiesOf(runs) {
  const found = new Map();
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
  const rank = ({ statistic }) => (order.includes(statistic) ? order.indexOf(statistic) : order.length);
  return [...found.values()].sort((a, b) => rank(a) - rank(b) || byProtocol(a.protocol, b.protocol) || compare(a.key, b.key));
}

/** Settings that differ between runs, what regularises first: {name, values}. */
function settingsOf(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  return names.map((name) => ({ name, values: [...new Map(runs.map((run) => run.settings[name]).filter((one) => one !== undefined).map((one) => [String(one), one])).values()].sort(compare) }))
    .filter(({ values }) => values.length > 1)
    .sort((a, b) => REGULARISES.test(b.name) - REGULARISES.test(a.name) || (a.name === "seed") - (b.name === "seed") || compare(a.name, b.name));
}

/** A run's validation accuracy, or else any. */
function accuracy(run) {
  const names = Object.keys(run.metrics).filter((name) => name.toLowerCase().includes("acc") && !name.startsWith("explain/"));
  const own = names.find((name) => name === "val/acc") ?? names.find((name) => name.toLowerCase().includes("val")) ?? names[0];
  return own === undefined ? undefined : run.metrics[own];
}

function pageName(page) {
  const step = /(\d+)\.json$/.exec(page);
  return step ? `at step ${whole(Number(step[1]))}` : page === "page.html" ? "at the end of the fit" : "by attree explain";
}

/** A setting as people type it: 0.00001 and 0.1, not 0.10000000149. */
const settingText = (value) => (typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value));

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function compare(a, b) {
  if (a === b) return 0;
  if (a === undefined || a === null) return -1;
  if (b === undefined || b === null) return 1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}
