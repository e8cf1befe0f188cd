// What if some edges were not there? One edge is known exactly; several at once are computed by the model, where there is one.

import { h } from "./dom.js";
import { term } from "./glossary.js";
import { isolated, number, percent } from "./format.js";

const MOST_CLASSES = 6;

export class WhatIf {
  #asked = 0;
  #answers = new Map();

  /** `toggle(edge)` takes an edge out or puts it back, `clear()` puts all back. */
  constructor(content, { toggle, clear, show }) {
    this.content = content;
    this.toggle = toggle;
    this.clear = clear;
    this.show_ = show;
    this.body = h("div", { class: "answer", role: "status" });
    this.element = h("section", { class: "card what-if", "aria-label": "What if" });
  }

  /** Say what the prediction is without the edges of `cut`. */
  async show(target, position, cut, protocol) {
    const { content } = this;
    this.element.hidden = content.protocols.length === 0 && !content.isLive;
    if (this.element.hidden) return;
    const clear = h("button", { type: "button", click: this.clear }, "Put all back");
    const chips = cut.map((edge) => h("li", {},
      h("button", { type: "button", class: "chip", "aria-label": `Put ${edgeName(target, edge)} back`, click: () => this.toggle(edge) },
        edgeName(target, edge), h("span", { "aria-hidden": "true" }, " ×"))));
    const hint = content.isLive
      ? "Choose edges and take them out, as many as you like: the network itself answers."
      : "Choose an edge and take it out. Several at once need the network: attree serve.";
    this.element.replaceChildren(
      h("h3", {}, "What if?", term("whatif")),
      cut.length > 0 ? h("ul", { class: "chips" }, chips, cut.length > 1 ? h("li", {}, clear) : null) : h("p", { class: "notes" }, hint),
      this.body);
    this.body.replaceChildren();
    if (cut.length === 0) return;
    const asked = ++this.#asked;
    let answer = known(content, target, cut, protocol);
    if (content.isLive) {
      const key = `${position} ${protocol} ${cut.toSorted ? cut.toSorted((a, b) => a - b) : [...cut].sort((a, b) => a - b)}`;
      if (!this.#answers.has(key)) {
        this.body.replaceChildren(h("p", { class: "notes" }, "asking the network …"));
        this.#answers.set(key, content.live(target.position, cut.map((edge) => target.edges[edge]), protocol));
      }
      try {
        answer = await this.#answers.get(key);
      } catch (error) {
        this.#answers.delete(key);
        answer = { error: String(error.message ?? error) };
      }
    }
    if (asked !== this.#asked) return; // the reader has asked for something else meanwhile
    this.body.replaceChildren(...this.#told(target, cut, protocol, answer));
  }

  #told(target, cut, protocol, answer) {
    const { content } = this;
    if (!answer) return [h("p", { class: "notes" }, "This page does not know it.")];
    if (answer.error) return [h("p", { class: "wrong" }, answer.error)];
    const parts = [h("p", { class: "sentence" }, sentence(content, target, cut, protocol, answer))];
    if (answer.now && answer.then) parts.push(this.#classes(answer));
    return parts;
  }

  /** Now and then of the classes that matter, as bars. */
  #classes({ now, then }) {
    const order = [...now.keys()].sort((a, b) => Math.max(now[b], then[b]) - Math.max(now[a], then[a])).slice(0, MOST_CLASSES);
    const bar = (share, kind) => {
      const cell = h("td", { class: `share ${kind}` }, percent(share));
      cell.style.setProperty("--bar", `${Math.round(share * 100)}%`);
      return cell;
    };
    return h("table", { class: "classes" },
      h("thead", {}, h("tr", {}, ["class", "now", "then"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, order.map((own) => h("tr", { "data-class": own }, h("th", { scope: "row" }, this.content.className(own)), bar(now[own], "now"), bar(then[own], "then")))));
  }
}

export const edgeName = (target, edge) => `${isolated(target.names[target.source[edge]])} → ${isolated(target.names[target.destination[edge]])}`;

/** What a page knows by itself: the exact effect of one edge. */
export function known(content, target, cut, protocol) {
  const effect = cut.length === 1 ? target.effects[protocol] : null;
  if (!effect) return null;
  const [edge] = cut;
  const changed = Boolean(effect.changed[edge]);
  const answer = { changed, drop: effect.pc[edge] };
  if (effect.after) Object.assign(answer, { class: effect.after[edge], share: effect.confidence[edge] });
  else if (!changed && target.predicted !== undefined) {
    Object.assign(answer, { class: target.predicted, share: Math.max(0, target.confidence - effect.pc[edge]) });
  }
  return answer;
}

/** One sentence: what the network predicts now, and what without the edges. */
export function sentence(content, target, cut, protocol, answer) {
  const without = `Without ${cut.length === 1 ? edgeName(target, cut[0]) : `these ${cut.length} edges`} (reduced by ${protocol})`;
  const now = target.predicted === undefined ? "" : `The network predicts ${content.className(target.predicted)} (${percent(target.confidence)}). `;
  if (answer.value !== undefined) return `The network predicts ${number(answer.value[0])}. ${without} it would predict ${number(answer.value[1])}.`;
  if (content.predictsNumbers) return `${without} the predicted number ${answer.drop < 0 ? "rises" : "falls"} by ${number(Math.abs(answer.drop), 3)}.`;
  const own = answer.then ? answer.then.indexOf(Math.max(...answer.then)) : answer.class;
  const share = answer.then ? answer.then[own] : answer.share;
  const changed = answer.then ? own !== answer.now.indexOf(Math.max(...answer.now)) : answer.changed;
  if (own === undefined) {
    const rest = target.predicted === undefined
      ? `the confidence ${answer.drop < 0 ? "rises" : "falls"} by ${number(Math.abs(answer.drop), 2)}`
      : `${content.className(target.predicted)} has ${percent(Math.max(0, target.confidence - answer.drop))} then`;
    return `${now}${without} it would ${changed ? "say something else" : "say the same"}; ${rest}.`;
  }
  return `${now}${without} it would ${changed ? `predict ${content.className(own)}` : "still predict the same"} (${percent(share)}).`;
}

/** One sentence: what the network predicts without the edge with the largest effect; empty if effects are unknown or 0. */
export function strongestSentence(content, target, protocol) {
  const effects = Array.from(target.effects[protocol]?.pc ?? []);
  const largest = effects.reduce((best, effect, edge) => (Math.abs(effect) > Math.abs(effects[best]) ? edge : best), 0);
  if (effects.length === 0) return "";
  if (!effects[largest]) return `No single edge changes this prediction (reduced by ${protocol}).`;
  return sentence(content, target, [largest], protocol, known(content, target, [largest], protocol));
}
