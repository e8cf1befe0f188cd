// What if some edges were not there? One sentence under the picture. The effect of one edge was measured; several at once are computed by
// the network: by a server or a kernel that holds it, or by this page where it carries the weights.

import { h } from "./dom.js";
import { term } from "./glossary.js";
import { isolated, number, percent, short } from "./format.js";

const MOST_CLASSES = 6;
/** Characters of a name in a sentence. */
const LONGEST = 40;

export class WhatIf {
  #asked = 0;
  #answers = new Map();

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
    const back = (edge) => h("button", { type: "button", class: "chip", "aria-label": `Put ${edgeName(target, edge)} back`, click: () => this.toggle(edge) },
      edgeName(target, edge), h("span", { "aria-hidden": "true" }, " ×"));
    this.element.replaceChildren(body, h("ul", { class: "chips", "aria-label": "Edges taken out" }, cut.map((edge) => h("li", {}, back(edge))),
      cut.length > 1 ? h("li", {}, h("button", { type: "button", click: this.clear }, "Put all back")) : null));
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
    if (asked !== this.#asked) return; // the reader has asked for something else meanwhile
    if (answer.error) return body.replaceChildren(h("p", { class: "wrong" }, answer.error));
    body.replaceChildren(h("p", { class: "sentence" }, sentence(content, target, cut, protocol, answer)),
      answer.now && answer.then ? this.#classes(answer) : "");
  }

  #hint(target) {
    const { content } = this;
    if (!content.answers(target)) return `Click an edge and take it out. Several at once: attree serve. ${content.withoutNetwork ?? ""}`;
    return `Click edges and take them out, as many as you like: ${content.serves ? "the network itself answers" : "this page holds the network's weights and computes the answer"}.`;
  }

  /** The edge with the largest effect. */
  #strongest(target, protocol) {
    const effects = target.effects[protocol].pc;
    const largest = effects.reduce((best, effect, edge) => (Math.abs(effect) > Math.abs(effects[best]) ? edge : best), 0);
    if (!effects[largest]) return [h("p", { class: "sentence" }, `No single edge changes this prediction${reducedBy(protocol)}.`)];
    return [h("p", { class: "sentence" }, sentence(this.content, target, [largest], protocol, known(this.content, target, [largest], protocol)), " ",
      h("button", { type: "button", "aria-label": `Take ${edgeName(target, largest)} out`, click: () => this.toggle(largest) }, "Take it out"))];
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
      h("tbody", {}, order.map((place) => h("tr", { "data-class": place },
        h("th", { scope: "row" }, this.content.className(place)), bar(now[place], "now"), bar(then[place], "then")))));
  }
}

/** An edge by its ends, each of them at most so long. */
export function edgeName(target, edge, most = Infinity) {
  const name = (node) => isolated(short(target.names[node], most));
  return `${name(target.source[edge])} → ${name(target.destination[edge])}`;
}

/** An edge within a sentence. */
function edgeWords(target, edge) {
  const isLoop = target.source[edge] === target.destination[edge];
  return isLoop ? `the self-loop of ${isolated(short(target.names[target.source[edge]], LONGEST))}` : edgeName(target, edge, LONGEST);
}

/** An edge is left out where it is deleted; what else is done to it is named. */
const reducedBy = (protocol) => (protocol === "removal" ? "" : ` (reduced by ${protocol})`);

/** What a page knows by itself: the exact effect of one edge. */
export function known(content, target, cut, protocol) {
  const effect = target.effects[protocol];
  if (cut.length !== 1) return { error: "This page does not know it." };
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
  const without = `Without ${cut.length === 1 ? edgeWords(target, cut[0]) : `these ${cut.length} edges`}${reducedBy(protocol)}`;
  const now = target.predicted === undefined ? "" : `The network predicts ${content.className(target.predicted)} (${percent(target.confidence)}). `;
  if (answer.value !== undefined) return `The network predicts ${number(answer.value[0])}. ${without} it would predict ${number(answer.value[1])}.`;
  const moves = (drop) => `${drop < 0 ? "rises" : "falls"} by ${number(Math.abs(drop), 3)}`;
  if (content.predictsNumbers) return `${without} the predicted number ${moves(answer.drop)}.`;
  const after = answer.then ? answer.then.indexOf(Math.max(...answer.then)) : answer.class;
  const share = answer.then ? answer.then[after] : answer.share;
  const changed = answer.then ? after !== answer.now.indexOf(Math.max(...answer.now)) : answer.changed;
  if (after === undefined) {
    const then = target.predicted === undefined ? `the confidence ${moves(answer.drop)}`
      : `${content.className(target.predicted)} has ${percent(Math.max(0, target.confidence - answer.drop))} then`;
    return `${now}${without} it would predict ${changed ? "another class" : "the same"}; ${then}.`;
  }
  return `${now}${without} it would ${changed ? `predict ${content.className(after)}` : "still predict the same"} (${percent(share)}).`;
}
