// How good the explanations are: one row a statistic, one column a method.

import { h } from "./dom.js";
import { number } from "./format.js";

const TOTAL = "faithfulness";

/** The summary's element; null if there is nothing to sum up. */
export function summaryTable(content) {
  const own = content.metrics.filter((metric) => metric.method !== undefined);
  const others = content.metrics.filter((metric) => metric.method === undefined);
  const facts = [...content.summary, ...others.map((metric) => [metric.name, number(metric.value)])];
  if (own.length === 0 && facts.length === 0) return null;
  const parts = [];
  if (facts.length > 0) {
    parts.push(h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
  }
  if (own.length > 0) parts.push(metricsTable(content, own));
  return h("div", { class: "summary" }, parts);
}

function metricsTable(content, metrics) {
  const methods = [...new Set(metrics.map((metric) => metric.method))];
  const protocols = [...new Set(metrics.map((metric) => metric.protocol))];
  const head = h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "compared with"),
    methods.map((method) => h("th", { scope: "col", class: "number" }, content.label[method] ?? method))));
  const bodies = protocols.map((protocol) => {
    const within = metrics.filter((metric) => metric.protocol === protocol);
    const statistics = [...new Set(within.map((metric) => metric.name))].sort((a, b) => (b === TOTAL) - (a === TOTAL));
    const heading = protocol === null ? "ground truth" : `protocol ${protocol}`;
    const meaning = content.protocols.find((one) => one.name === protocol)?.meaning;
    const rows = statistics.map((statistic) => {
      const values = methods.map((method) =>
        within.find((metric) => metric.method === method && metric.name === statistic)?.value);
      const known = values.filter((value) => typeof value === "number");
      const best = known.length > 1 ? Math.max(...known) : NaN;
      return h("tr", { class: statistic === TOTAL ? "total" : "" },
        h("th", { scope: "row" }, content.statistics[statistic] ?? statistic),
        values.map((value) => h("td", { class: "number" },
          value === undefined ? "" : value === best ? h("strong", {}, fixed(value)) : fixed(value))));
    });
    const label = h("th", { colspan: methods.length + 1, scope: "colgroup" }, heading, meaning ? h("small", {}, ` ${meaning}`) : "");
    return h("tbody", {}, h("tr", { class: "group" }, label), rows);
  });
  return h("div", { class: "scroller", role: "region", tabindex: 0, "aria-label": "Summary table" },
    h("table", { class: "metrics" }, head, bodies));
}

const fixed = (value) => (value === null ? "undefined" : value.toFixed(4).replace("-", "−"));
