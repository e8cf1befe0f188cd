// Pick a target: search, list, next and previous.

import { h, select } from "./dom.js";
import { percent, short, whole } from "./format.js";

const MOST = 400;
/** Characters of a name in the list. */
const LONGEST = 30;
let lists = 0;

export class TargetList {
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
      type: "search", placeholder: `Find a ${noun}`, "aria-label": `Find a ${noun} by number, name or class`,
      "aria-controls": this.id, input: () => this.#ask({ find: this.search.value }), keydown: (event) => this.#keys(event),
    });
    this.list = h("div", {
      id: this.id, class: "targets", role: "listbox", tabindex: 0, "aria-label": `Explained ${noun}s`,
      keydown: (event) => this.#keys(event),
      click: (event) => {
        const option = event.target.closest("[data-target]");
        if (option) choose(Number(option.dataset.target));
      },
    });
    this.note = h("p", { class: "notes", role: "status" });
    this.search.value = this.asked.find;
    this.filters = this.#filters();
    this.sorts = this.#sorts();
    const option = (entries) => Object.entries(entries).map(([key, [text]]) => [key, text]);
    if (!(this.asked.show in this.filters)) this.asked.show = "all";
    if (!(this.asked.sort in this.sorts)) this.asked.sort = "telling";
    this.element = h("div", { class: "target-list" }, this.search,
      h("div", { class: "fields" },
        Object.keys(this.filters).length > 1 ? select("Show", option(this.filters), this.asked.show, (show) => this.#ask({ show })).element : null,
        select("Sort", option(this.sorts), this.asked.sort, (sort) => this.#ask({ sort })).element),
      this.list, this.note);
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
    const wrong = (target) => target.true !== undefined && target.predicted !== target.true;
    if (targets.some((target) => target.predicted !== undefined && wrong(target))) {
      filters.wrong = ["wrong predictions", wrong];
      filters.right = ["right predictions", (target) => !wrong(target)];
    }
    if (targets.some((target) => target.truth)) filters.truth = ["with true edges", (target) => Boolean(target.truth)];
    return filters;
  }

  /** Orders of the list; the targets come with the most instructive first. */
  #sorts() {
    const { content } = this;
    const sorts = { telling: ["most instructive first", () => 0], id: ["by name", (a, b) => compare(content.targetName(a), content.targetName(b))] };
    if (content.targets.some((target) => target.confidence !== undefined)) {
      sorts.unsure = ["least sure first", (a, b) => (a.confidence ?? 2) - (b.confidence ?? 2)];
    }
    sorts.large = ["largest first", (a, b) => b.wholeEdges - a.wholeEdges];
    return sorts;
  }

  /** Every word that a target can be found by. */
  #words(target) {
    const { content } = this;
    const words = [String(content.targetId(target)), content.targetName(target)];
    for (const own of [target.predicted, target.true]) if (own !== undefined) words.push(content.className(own));
    return words.join(" ").toLowerCase();
  }

  #draw() {
    const asked = this.search.value.trim().toLowerCase();
    const { content } = this;
    const exact = (position) => content.targetName(content.targets[position]).toLowerCase() === asked;
    this.#found = content.targets
      .map((target, position) => [target, position])
      .filter(([target]) => this.filters[this.asked.show][1](target) && this.#words(target).includes(asked))
      .sort(([a], [b]) => this.sorts[this.asked.sort][1](a, b))
      .map(([, position]) => position);
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
      role: "option", id: `${this.id}-${position}`, "data-target": position, "aria-selected": "false",
    }, h("span", { class: "name", title: content.targetName(target) }, short(content.targetName(target), LONGEST)));
    if (target.predicted !== undefined) {
      const isWrong = target.true !== undefined && target.true !== target.predicted;
      option.append(h("span", { class: "class" }, content.className(target.predicted)),
        h("span", { class: isWrong ? "mark wrong" : "mark" }, isWrong ? "wrong" : percent(target.confidence)));
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
  neighbour(step) {
    const among = this.#found.length > 1 ? this.#found : [...this.content.targets.keys()];
    const place = among.indexOf(this.#current);
    return place < 0 ? among[0] : among[(((place + step) % among.length) + among.length) % among.length];
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
}

/** Names by their numbers where they are numbers, else as words. */
const compare = (a, b) => a.localeCompare(b, "en", { numeric: true });
