// How good the explanations are: the verdict in words; one row a method, and all statistics behind a button.

import { h } from "./dom.js";
import { term } from "./glossary.js";
import { fixed, number, percent } from "./format.js";
import { standingOut } from "./palette.js";

const TOTAL = "faithfulness";
const TRUTH = "truth_auroc";
const INSTEAD = "pc_pearson";
// Lines of the verdict that stand open: the headline.
const OPEN = 2;
// Sizes of effects are in the verdict's sentences.
const EFFECTS = "explain/effects/";
const REDUCED = { removal: "edge deleted", weight: "weight set to 0" };
const FACTS = { "explain/bypass": ["kept without attention", percent] };

/** The summary's element; null if there is nothing to sum up. */
export function summaryTable(content, colors) {
  const own = content.metrics.filter((metric) => metric.method !== undefined);
  const others = content.metrics.filter((metric) => metric.method === undefined && !metric.name.startsWith(EFFECTS));
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

/** The headline of the verdict, with the other findings behind a button; null if there is no verdict. */
export function verdictBox(content) {
  const verdict = content.verdict ?? [];
  if (verdict.length === 0) return null;
  const open = verdict.length <= OPEN + 1 ? verdict.length : OPEN;
  const [first, more] = [verdict.slice(0, open), verdict.slice(open)].map((part) => part.map((sentence) => h("p", {}, worded(sentence))));
  return h("section", { class: "verdict", "aria-label": "Verdict" }, h("div", {}, first),
    more.length > 0 ? h("details", {}, h("summary", {}, `${more.length} more findings`), more) : null);
}

/**
 * One row a method: against ground truth, and the leading statistic by each protocol. Fits any screen. Where it is undefined
 * for all methods, their correlation with the drop of confidence over all targets stands there.
 */
function headline(content, metrics, colors) {
  const methods = unique(metrics.map((metric) => metric.method));
  const protocols = unique(metrics.map((metric) => metric.protocol)).filter((protocol) => protocol !== null);
  const isKnown = (statistic, protocol) =>
    metrics.some((metric) => metric.name === statistic && metric.protocol === protocol && Number.isFinite(metric.value));
  const columns = [
    { small: "", statistic: TRUTH, protocol: null, word: "auroc" },
    ...protocols.map((protocol) => {
      const leading = content.leading ?? TOTAL;
      const instead = !isKnown(leading, protocol) && isKnown(INSTEAD, protocol);
      const word = instead ? "confidence" : leading === TOTAL ? "faithfulness" : "within";
      return { small: REDUCED[protocol] ?? `reduced by ${protocol}`, statistic: instead ? INSTEAD : leading, protocol, word: content.predictsNumbers ? "drop" : word };
    }),
  ].map((column) => ({ ...column, title: content.statistics[column.statistic] ?? column.statistic })).filter((column) => metrics.some((metric) => metric.name === column.statistic && metric.protocol === column.protocol));
  if (columns.length === 0) return null;
  const value = (method, column) => metrics.find((metric) => metric.method === method && metric.name === column.statistic && metric.protocol === column.protocol);
  const best = columns.map((column) => highest(methods.map((method) => value(method, column)?.value)));
  const rows = methods.map((method) => h("tr", { "data-method": method },
    h("th", { scope: "row" }, swatch(content, method, colors), content.label[method] ?? method),
    columns.map((column, place) => h("td", { class: "number" }, written(value(method, column), best[place])))));
  const head = columns.map((column, place) => h("th", { scope: "col", class: "number" },
    h("span", {}, column.title, columns.findIndex(({ word }) => word === column.word) === place ? term(column.word) : null),
    column.small ? h("small", {}, column.small) : null));
  return h("div", {},
    h("table", { class: "headline" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "method"), head)), h("tbody", {}, rows)),
    metrics.some((metric) => metric.interval) ? h("p", { class: "notes" }, "with 95 % intervals", term("interval")) : null);
}

/** Every statistic: a row each, a column each method, a group each protocol. */
function everything(content, metrics) {
  const methods = unique(metrics.map((metric) => metric.method));
  const protocols = unique(metrics.map((metric) => metric.protocol));
  const head = h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "compared with"),
    methods.map((method) => h("th", { scope: "col", class: "number" }, content.label[method] ?? method))));
  const bodies = protocols.map((protocol) => {
    const within = metrics.filter((metric) => metric.protocol === protocol);
    const leading = content.leading ?? TOTAL;
    const statistics = unique(within.map((metric) => metric.name)).sort((a, b) => (b === leading) - (a === leading));
    const heading = protocol === null ? "ground truth" : `edges reduced by ${protocol}`;
    const meaning = content.protocols.find((one) => one.name === protocol)?.meaning;
    const rows = statistics.map((statistic) => {
      const values = methods.map((method) => within.find((metric) => metric.method === method && metric.name === statistic));
      const best = highest(values.map((one) => one?.value));
      return h("tr", { class: statistic === leading ? "total" : "" },
        h("th", { scope: "row" }, content.statistics[statistic] ?? statistic),
        values.map((one) => h("td", { class: "number" }, written(one, best))));
    });
    const label = h("th", { colspan: methods.length + 1, scope: "colgroup" }, heading, meaning ? h("small", {}, ` ${meaning}`) : "");
    return h("tbody", {}, h("tr", { class: "group" }, label), rows);
  });
  return h("details", {}, h("summary", {}, "All statistics"),
    h("div", { class: "scroller", role: "region", tabindex: 0, "aria-label": "All statistics" },
      h("table", { class: "metrics" }, head, bodies)));
}

/** A metric with its interval; the best is in bold. */
function written(metric, best) {
  if (!metric) return "";
  const text = fixed(metric.value);
  const own = metric.value === best ? h("strong", {}, text) : text;
  return metric.interval ? [own, h("small", { class: "interval" }, ` ${fixed(metric.interval[0], 2)} to ${fixed(metric.interval[1], 2)}`)] : own;
}

/** A sentence whose words between backticks are names that people type. */
const worded = (sentence) => sentence.split("`").map((part, place) => (place % 2 === 1 ? h("code", {}, part) : part));

function swatch(content, method, colors) {
  const color = content.methods.find((one) => one.name === method)?.color;
  const dot = h("span", { class: "swatch", "aria-hidden": "true" });
  if (color) dot.style.background = standingOut(colors, color);
  return dot;
}

function highest(values) {
  const known = values.filter((value) => typeof value === "number");
  return known.length > 1 ? Math.max(...known) : NaN;
}

const unique = (values) => [...new Set(values)];
