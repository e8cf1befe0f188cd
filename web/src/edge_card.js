// The card of one edge: its score by every method, and what reducing it does by every protocol.

import { h } from "./dom.js";
import { rankOf, size } from "./data.js";
import { count, number, percent, signed, whole } from "./format.js";
import { edgeName, known, sentence } from "./what_if.js";

/** The card's content. `tree` is the grown tree, or null; `protocol` is the one that the sentence is about. */
export function edgeCard(content, target, edge, tree, protocol) {
  const [from, to] = [target.source[edge], target.destination[edge]];
  const answer = protocol ? known(content, target, [edge], protocol) : null;
  return [
    h("h3", {}, edgeName(target, edge)),
    h("p", { class: "notes" }, notes(target, edge, from, to, protocol).join(" · ")),
    answer ? h("p", { class: "sentence" }, sentence(content, target, [edge], protocol, answer)) : null,
    scoresTable(content, target, edge),
    content.protocols.length > 0 ? effectsTable(content, target, edge) : null,
    tree ? flows(target, edge, tree) : null,
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
    return h("tr", { "data-method": name },
      h("th", { scope: "row" }, label),
      h("td", { class: "value" }, number(values[edge])),
      h("td", { class: "rank" }, `${whole(rank)} of ${whole(target.size)}${target.leftOut ? " kept" : ""}`));
  });
  return h("table", {}, h("thead", {}, row("th", "method", "score", "rank")), h("tbody", {}, rows));
}

function effectsTable(content, target, edge) {
  const rows = content.protocols.map(({ name }) => {
    const effect = target.effects[name];
    return h("tr", { "data-protocol": name },
      h("th", { scope: "row" }, name),
      h("td", { class: effect.pc[edge] < 0 ? "pc against" : "pc" }, signed(effect.pc[edge])),
      content.predictsNumbers ? null : [
        h("td", { class: "ne" }, signed(effect.ne[edge])),
        h("td", { class: effect.changed[edge] ? "after changed" : "after" }, afterwards(content, target, effect, edge))]);
  });
  const known = target.predicted !== undefined;
  const before = known ? [h("small", {}, ` now ${content.className(target.predicted)} ${percent(target.confidence)}`)] : [];
  return h("table", {},
    h("caption", {}, "what reducing it does", before),
    h("thead", {}, row("th", "reduced by", content.dropName, ...(content.predictsNumbers ? [] : ["loss of certainty", "prediction then"]))),
    h("tbody", {}, rows));
}

/** The card of a node: what it is, how far away, and its strongest edges that are drawn. */
export function nodeCard(content, target, node, values, visible, label) {
  const found = [];
  if (target.names[node] !== String(target.nodes[node])) found.push(`number ${target.nodes[node]}`);
  const group = target.group?.[node];
  if (group !== undefined && content.groups.names[group] !== undefined) found.push(`${content.groups.meaning}: ${content.groups.names[group]}`);
  if (target.roots.includes(node)) found.push("what is explained");
  else if (target.hops[node] !== 255) found.push(`${count(target.hops[node], "step")} to the target`);
  const own = (ends) => Array.from(ends.keys()).filter((edge) => visible[edge] && ends[edge] === node)
    .sort((a, b) => size(values[b]) - size(values[a]));
  const [into, out] = [own(target.destination), own(target.source)];
  const rows = (title, edges) => edges.length === 0 ? [] : [
    h("tr", {}, h("th", { scope: "row" }, `${title} (${whole(edges.length)}), strongest`),
      h("td", {}, `${edgeName(target, edges[0])} ${number(values[edges[0]], 3)}`))];
  return [
    h("h3", {}, target.names[node]),
    h("p", { class: "notes" }, found.join(" · ")),
    h("table", {}, h("caption", {}, `by ${label}`), h("tbody", {}, rows("edges in", into), rows("edges out", out))),
  ];
}

/** The prediction after the reduction, in words, as far as it is known; names of classes have at most so many characters. */
export function afterwards(content, target, effect, edge, most = Infinity) {
  const changed = Boolean(effect.changed[edge]);
  if (effect.after) return `${content.className(effect.after[edge], most)} ${percent(effect.confidence[edge])}`;
  if (target.predicted === undefined) return changed ? "another class" : "the same class";
  const still = `${content.className(target.predicted, most)} ${percent(Math.max(0, target.confidence - effect.pc[edge]))}`;
  return changed ? `another class (${still})` : still;
}

/** The ways from each occurrence of the edge to the root: their attention multiplied, and the sum, which is GAtt. */
function flows(target, edge, tree) {
  const own = tree.filter((step) => step.edge === edge);
  if (own.length === 0) return h("p", { class: "notes" }, "not in the part of the tree that is drawn");
  const terms = own.slice(0, 4).map((step) => {
    const factors = [];
    for (let at = step; at.parent; at = at.parent) factors.push(number(at.attention));
    return factors.join(" · ");
  });
  const rest = own.length > terms.length ? [`${own.length - terms.length} more`] : [];
  const sum = own.reduce((total, step) => total + step.flow, 0);
  const part = tree.length < target.treeSize ? " of the part that is drawn" : "";
  return h("div", { class: "flows" },
    h("p", {}, `${count(own.length, "time")} in the tree${part}; attention along the ways to the root:`),
    h("p", { class: "sum" }, `${[...terms, ...rest].join(" + ")} = ${number(sum)}`));
}

/** One sentence for screen readers. */
export function edgeSentence(content, target, edge, method, protocol) {
  const [from, to] = [target.names[target.source[edge]], target.names[target.destination[edge]]];
  const values = target.scores[method];
  const rank = rankOf(values, edge);
  const parts = [`Edge from ${from} to ${to}.`, `${content.label[method]} ${number(values[edge])}, rank ${rank} of ${target.size}.`];
  if (target.truth?.[edge]) parts.push("A true explanation.");
  if (protocol) {
    const effect = target.effects[protocol];
    parts.push(content.predictsNumbers ? `Reducing it by ${protocol}: the predicted number changes by ${number(-effect.pc[edge])}.`
      : `Reducing it by ${protocol}: confidence changes by ${number(-effect.pc[edge])}, the predicted class ${effect.changed[edge] ? "changes" : "stays"}.`);
  }
  return parts.join(" ");
}

function row(tag, ...cells) {
  return h("tr", {}, cells.map((cell) => h(tag, { scope: "col" }, cell)));
}
