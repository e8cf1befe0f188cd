// Runs side by side: explanation quality against accuracy and against any setting, and a table. For TensorBoard's tab and the page of a sweep.

import { byProtocol } from "./curves.js";
import { h, select } from "./dom.js";
import { count, fixed, number, whole } from "./format.js";
import { front, legend, looksOf, scatter } from "./scatter.js";

const MOST_ROWS = 300;
const MOST_PANELS = 8;
export const STATISTICS = {
  within_pearson: "within targets, Pearson", truth_auroc: "ground truth, AUROC", faithfulness: "faithfulness (mean)", pc_pearson: "confidence, Pearson",
  pc_kendall: "confidence, Kendall", pc_spearman: "confidence, Spearman", ne_pearson: "entropy, Pearson", ne_kendall: "entropy, Kendall",
  ne_spearman: "entropy, Spearman", p_auroc: "prediction, AUROC",
};
const REDUCED = { removal: "edge deleted", weight: "weight set to 0" };
const REGULARISES = /weight_decay|dropout|penalt|entropy|sparsity|smooth|l1|l2|lambda/i;
const FLOORS = { 0.01: "within 1 point of the best", 0.05: "within 5 points of the best", 0.1: "within 10 points of the best", Infinity: "any" };
/** What stands in place of a method for all of them, in place of a setting for methods, and in place of a setting for none. */
const [ALL, METHOD, NONE] = ["", "", ""];

export class Comparison {
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
      quality: this.qualities[0]?.key, method: ALL, over: over?.name, color: state.method ? (color ?? over)?.name ?? METHOD : METHOD, panels: panels?.name ?? NONE,
      floor: "0.05", means: false, find: "", sort: "name", down: false, run: null, ...state,
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
    return h("div", { class: "controls" },
      field("Quality", this.qualities.map(({ key, text }) => [key, text]), "quality"),
      field("Method", [[ALL, "all methods"], ...this.methods.map(({ name, label }) => [name, label])], "method"),
      names.length > 0 ? [
        field("Against", names, "over"),
        field("Colour by", [[METHOD, "method"], ...names], "color"),
        names.length > 2 ? field("A chart for each", [[NONE, "(one chart)"], ...names], "panels") : null,
      ].filter(Boolean) : null,
      field(this.outcome.title === "AUC" ? "AUC" : "Accuracy", Object.entries(FLOORS).sort(([a], [b]) => a - b), "floor"),
      h("div", { class: "field" }, h("span", {}, "Runs"), find),
      settings.some(({ name }) => name === "seed") ? h("label", { class: "check" }, means, "means over seeds") : null);
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
    const groups = new Map();
    for (const run of runs) {
      const key = JSON.stringify(this.settings.filter(({ name }) => name !== "seed").map(({ name }) => run.settings[name]));
      groups.set(key, [...(groups.get(key) ?? []), run]);
    }
    return [...groups.values()].map((members) => {
      const tags = [...new Set(members.flatMap((run) => Object.keys(run.metrics)))];
      const { seed, ...settings } = members[0].settings;
      return {
        name: members[0].name, title: withoutSeed(this.short.get(members[0].name)), runs: members, settings,
        metrics: Object.fromEntries(tags.map((tag) => [tag, mean(members.map((run) => run.metrics[tag]).filter(isNumber))])),
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
    const charts = [this.#tradeOff(chart), ...(state.over ? this.#overSetting(chart) : [])].filter(Boolean);
    this.charts.replaceChildren(...charts, charts.length > 0 ? legend(chart.title, chart.looks, colors)
      : h("p", { class: "notes" }, "Charts that compare runs appear here as soon as there are two."));
    this.#drawTable(chart);
  }

  /** What has a colour: {title, looks, key(row, method)}. */
  #coloured() {
    const { state, methods, colors } = this;
    if (state.color === METHOD) {
      return { title: "method", looks: looksOf(methods.map(({ name, label, color }) => [name, label, color]), colors), key: (_, method) => method };
    }
    const { name, title, values } = this.settings.find((setting) => setting.name === state.color);
    return { title, looks: looksOf(values.map((value) => [String(value), settingText(value), null]), colors), key: (row) => String(row.settings[name]) };
  }

  /** The points of all rows by the chosen methods: x(row) against y(row, method). */
  #points({ rows, floor, key }, x, y, methods, describe) {
    return rows.flatMap((row) => methods.map((method) => ({
      key: key(row, method), method, row, x: x(row), y: y(row, method), run: row.name, faint: floor !== null && !(this.outcome.of(row) >= floor),
      text: `${row.title}: ${describe(row, method)}`,
    }))).filter((point) => isNumber(point.x) && isNumber(point.y));
  }

  #tradeOff(chart) {
    const { state, colors } = this;
    const { quality, floor, looks } = chart;
    const methods = state.method === ALL ? this.methods.map(({ name }) => name) : [state.method];
    const value = (row, method) => row.metrics[quality.tag(method)];
    const { title, of } = this.outcome;
    const points = this.#points(chart, of, value, methods,
      (row, method) => `${title} ${number(of(row))}, ${this.label(method)} ${number(value(row, method))}`);
    if (points.length < 2) return null;
    const best = state.method === ALL ? [] : front(points.filter(({ faint }) => !faint));
    const told = best.length > 0 ? "the line joins what no other beats in both" : "";
    return scatter({
      title: `${quality.text}, against ${title}`, note: [told, floor === null ? "" : "faint: not accurate enough"].filter(Boolean).join("; "), xTitle: title,
      points, looks, colors, choose: this.open, chosen: state.run, limit: floor,
      joined: best.length > 1 ? [{ dash: "4 3", points: best.map(({ x, y }) => [x, y]) }] : [],
    });
  }

  /** Quality, and accuracy, over the values of a setting; a pair of charts for each value of another one. */
  #overSetting(chart) {
    const { state, colors, outcome } = this;
    const { quality, looks } = chart;
    const { title, values } = this.settings.find(({ name }) => name === state.over);
    const places = new Map(values.map((value, place) => [String(value), place]));
    const x = (row) => places.get(String(row.settings[state.over]));
    const where = (row) => `at ${title} ${settingText(row.settings[state.over])}`;
    const value = (row, method) => row.metrics[quality.tag(method)];
    const methods = state.method === ALL ? this.methods.map(({ name }) => name) : [state.method];
    const all = [
      { title: `${quality.text}, against ${title}`, points: this.#points(chart, x, value, methods, (row, method) => `${this.label(method)} ${number(value(row, method))} ${where(row)}`) },
      {
        title: `${outcome.title}, against ${title}`,
        points: this.#points({ ...chart, key: state.color === METHOD ? () => null : chart.key }, x, outcome.of, [state.method], (row) => `${outcome.title} ${number(outcome.of(row))} ${where(row)}`),
      },
    ].filter(({ points }) => points.length > 0);
    const panels = this.settings.find(({ name }) => name === state.panels && name !== state.over);
    return all.flatMap((one) => {
      const range = [Math.min(...one.points.map(({ y }) => y)), Math.max(...one.points.map(({ y }) => y))];
      const parts = panels ? panels.values.slice(0, MOST_PANELS).map((value) => [
        ` where ${panels.title} is ${settingText(value)}`, one.points.filter(({ row }) => String(row.settings[panels.name]) === String(value))]) : [["", one.points]];
      return parts.filter(([, points]) => points.length > 0).map(([part, points]) => scatter({
        title: one.title + part, note: "lines join means", xTitle: title, points, looks, colors, labels: values.map(settingText), range,
        choose: this.open, chosen: state.run,
        joined: [...new Set(points.map(({ key }) => key))].map((key) => ({ key, points: meansOf(points.filter((point) => point.key === key)) })),
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
      ...shown.map(({ name, title }) => ({ key: `setting ${name}`, title, value: (row) => row.settings[name], text: settingText })),
    ];
    const by = columns.find(({ key }) => key === state.sort) ?? columns[0];
    const order = by.key === "name" ? [...rows] : [...rows].sort((a, b) => compare(by.value(a), by.value(b)));
    if (state.down) order.reverse();
    const head = columns.map((column) => h("th", { scope: "col", class: column.key === "name" ? null : "number", "aria-sort": column === by ? (state.down ? "descending" : "ascending") : null },
      h("button", { type: "button", click: () => this.set({ sort: column.key, down: column === by ? !state.down : column.key !== "name" }) },
        column.title, column === by ? h("span", { class: "arrow", "aria-hidden": "true" }, state.down ? "▼" : "▲") : null)));
    const link = (run, text) => h("button", { type: "button", class: "open", title: run.name, click: () => this.open(run.name) }, text);
    const cell = (column, row) => {
      if (column.key === "name") {
        return h("th", { scope: "row" }, row.runs.length === 1 ? link(row.runs[0], row.title)
          : [row.title, " ", h("small", {}, "seeds"), row.runs.map((run) => link(run, settingText(run.settings.seed)))].flat());
      }
      const value = column.value(row);
      return h("td", { class: "number" }, value === undefined ? "" : column.text(value));
    };
    const classOf = (row) => [row.runs.some(({ name }) => name === state.run) ? "chosen" : "", floor !== null && !(outcome.of(row) >= floor) ? "below" : ""].join(" ").trim();
    this.table.replaceChildren(h("table", { class: "edges runs" },
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, order.slice(0, MOST_ROWS).map((row) => h("tr", { "data-run": row.name, class: classOf(row) || null }, columns.map((column) => cell(column, row)))))));
    const notes = quality ? [`${quality.text} of each method`] : [];
    if (floor !== null) notes.push(`faint: ${outcome.title} below ${number(floor, 3)}`);
    if (order.length > MOST_ROWS) notes.push(`the first ${MOST_ROWS} of ${whole(order.length)} are listed: find others by name`);
    if (state.find) notes.push(`${count(order.reduce((sum, row) => sum + row.runs.length, 0), "run")} of ${whole(this.runs.length)}`);
    this.note.textContent = notes.join("; ");
  }
}

/** Every statistic that some run has: {key, text, tag(method)}; ground truth first, then what leads, by protocol. */
function qualitiesOf(runs) {
  const found = new Map();
  for (const tag of new Set(runs.flatMap((run) => Object.keys(run.metrics)))) {
    const [prefix, method, ...rest] = tag.split("/");
    if (prefix !== "explain" || method === "effects" || rest.length === 0) continue;
    const [statistic, protocol] = [rest.at(-1), rest.length > 1 ? rest[0] : ""];
    const text = (STATISTICS[statistic] ?? statistic.replaceAll("_", " ")) + (protocol ? `, ${REDUCED[protocol] ?? protocol}` : "");
    found.set(rest.join("/"), { key: rest.join("/"), text, statistic, protocol, tag: (name) => [prefix, name, ...rest].join("/") });
  }
  const order = Object.keys(STATISTICS);
  const rank = ({ statistic }) => (order.includes(statistic) ? order.indexOf(statistic) : order.length);
  return [...found.values()].sort((a, b) => rank(a) - rank(b) || byProtocol(a.protocol, b.protocol) || compare(a.key, b.key));
}

/** Settings that differ between runs, what regularises first: {name, title, values}. Those that always change together are one. */
function settingsOf(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  const settings = new Map();
  for (const name of names.sort((a, b) => a.length - b.length || compare(a, b))) {
    const values = runs.map((run) => run.settings[name]);
    const distinct = [...new Map(values.filter((value) => value !== undefined).map((value) => [String(value), value])).values()].sort(compare);
    if (distinct.length < 2) continue;
    const key = JSON.stringify(values.map((value) => distinct.findIndex((other) => String(other) === String(value))));
    if (settings.has(key)) settings.get(key).title += `, ${name}`;
    else settings.set(key, { name, title: name, values: distinct });
  }
  return [...settings.values()]
    .sort((a, b) => REGULARISES.test(b.name) - REGULARISES.test(a.name) || (a.name === "seed") - (b.name === "seed") || compare(a.name, b.name));
}

/** Settings for the axis, the colour and the charts: the numbers with the most values go to the axis, words get colours. */
function orderOfAxes(settings) {
  const isNumeric = ({ values }) => values.every((value) => typeof value === "number");
  const [over] = [...settings].sort((a, b) => isNumeric(b) - isNumeric(a) || b.values.length - a.values.length);
  const rest = settings.filter((setting) => setting !== over).sort((a, b) => isNumeric(a) - isNumeric(b) || b.values.length - a.values.length);
  return [over, ...rest];
}

/** Names without what all of them begin with, up to the last sign between words. */
export function shortNames(names) {
  let common = names.length > 1 ? names[0] : "";
  for (const name of names) while (!name.startsWith(common)) common = common.slice(0, -1);
  const cut = Math.max(...["/", "-", ",", " "].map((sign) => common.lastIndexOf(sign))) + 1;
  return new Map(names.map((name) => [name, name.slice(cut)]));
}

const withoutSeed = (name) => name.replace(/[-/, ]*\bseed[=_-]?\d+\b/, "") || name;

/** How well runs predict: {title, of(run)}. Validation accuracy, or else any; the area under the curve where no run has an accuracy, as for links. */
function outcomeOf(runs) {
  const has = (word) => (name) => name.toLowerCase().includes(word) && !name.startsWith("explain/");
  const isLinks = runs.every((run) => !Object.keys(run.metrics).some(has("acc"))) && runs.some((run) => Object.keys(run.metrics).some(has("auc")));
  const word = isLinks ? "auc" : "acc";
  const of = (run) => {
    const names = Object.keys(run.metrics).filter(has(word));
    const name = names.find((one) => one === `val/${word}`) ?? names.find((one) => one.toLowerCase().includes("val")) ?? names[0];
    return name === undefined ? undefined : run.metrics[name];
  };
  return { title: isLinks ? "AUC" : "accuracy", of };
}

/** A setting as people type it: 0.00001 and 0.1, not 0.10000000149; of an import path the last word. */
function settingText(value) {
  if (typeof value === "number") return String(Number(value.toPrecision(6)));
  const text = String(value ?? "");
  return /^([A-Za-z_]\w*\.)+[A-Za-z_]\w*$/.test(text) ? text.slice(text.lastIndexOf(".") + 1) : text;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const mean = (values) => (values.length > 0 ? values.reduce((sum, value) => sum + value, 0) / values.length : undefined);

/** The mean of points at each place, from left to right. */
function meansOf(points) {
  const places = [...new Set(points.map(({ x }) => x))].sort((a, b) => a - b);
  return places.map((place) => [place, mean(points.filter(({ x }) => x === place).map(({ y }) => y))]);
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === undefined || a === null) return -1;
  if (b === undefined || b === null) return 1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}
