// The edges beside the picture, sorted by any column. Arrow keys move through the rows.

import { h } from "./dom.js";
import { size, strengths } from "./data.js";
import { afterwards } from "./edge_card.js";
import { WORDS } from "./glossary.js";
import { number, signed, whole } from "./format.js";
import { edgeName } from "./what_if.js";

const FIRST_ROWS = 50;
/** Characters of a name in the table. */
const LONGEST = 20;
/** Scores below this share of the largest one are rounding. */
const NOISE = 1e-9;
/** Scores this close to effects are the effects. */
const SAME = 1e-6;

export class EdgeTable {
  #rows = [];
  #sort = { key: null, down: true };
  #shown = FIRST_ROWS;
  #current = null;
  #marked = -1;

  /** `choose(edge)` is called with the row that gets the focus, `hover(edge)` with the one under the pointer, `ask(state)` for all columns. */
  constructor({ choose, hover, ask }) {
    this.choose = choose;
    this.head = h("thead");
    this.body = h("tbody", {
      keydown: (event) => this.#keys(event),
      focusin: (event) => this.#focused(event),
      pointerover: (event) => hover(edgeOf(event.target), event),
      pointerleave: (event) => hover(-1, event),
      click: (event) => edgeOf(event.target) >= 0 && choose(edgeOf(event.target)),
    });
    this.caption = h("caption", {});
    this.more = h("button", { type: "button", class: "more", click: () => this.#showMore() });
    this.scroller = h("div", { class: "scroller", role: "region", "aria-label": "Edges", tabindex: 0 },
      h("table", { class: "edges" }, this.caption, this.head, this.body), this.more);
    this.words = h("dl", {});
    this.all = h("input", { type: "checkbox", change: () => ask({ columns: this.all.checked }) });
    this.element = h("div", { class: "edge-table" }, this.scroller,
      h("div", { class: "columns" }, h("label", { class: "check" }, this.all, "all columns"),
        h("details", {}, h("summary", {}, "What the columns mean"), this.words)));
  }

  /** Show the visible edges of a target; without another wish they are sorted by what the picture shows. */
  show(content, target, visible, { method, protocol, columns: hasAll }) {
    this.#current = { content, target, visible, method, protocol };
    this.all.checked = hasAll;
    this.columns = columns(content, target, method, protocol).filter((column) => hasAll || !column.isMore);
    if (!this.columns.some((column) => column.key === this.#sort.key)) this.#sort = { key: null, down: true };
    this.#shown = FIRST_ROWS;
    this.scroller.scrollTop = 0;
    const words = ["method", ...(protocol ? (content.predictsNumbers ? ["drop"] : ["pc", "then", "ne"]) : []), ...(target.truth ? ["truth"] : [])].map((word) => WORDS[word]);
    this.words.replaceChildren(...words.map(([name, meaning]) => h("div", {}, h("dt", {}, name), h("dd", {}, meaning))));
    this.#draw();
  }

  #draw() {
    const { target, visible, method } = this.#current;
    const key = this.#sort.key ?? `score ${method}`;
    const column = this.columns.find((one) => one.key === key) ?? this.columns[0];
    const edges = Array.from({ length: target.size }, (_, edge) => edge).filter((edge) => visible[edge]);
    const sign = this.#sort.down ? -1 : 1;
    this.order = edges.sort((a, b) => sign * compare(column.order(a), column.order(b)) || a - b);
    this.head.replaceChildren(h("tr", {}, this.columns.map((one) => this.#heading(one, one === column))));
    this.#rows = [];
    this.body.replaceChildren();
    this.#grow(this.#shown);
    this.mark(this.#marked, false);
  }

  #heading(column, isSorted) {
    const direction = this.#sort.down ? "descending" : "ascending";
    const press = () => {
      this.#sort = { key: column.key, down: isSorted ? !this.#sort.down : column.down };
      this.#draw();
      this.head.querySelector(`[data-key="${CSS.escape(column.key)}"]`).focus();
    };
    return h("th", { scope: "col", "aria-sort": isSorted ? direction : null, class: column.class },
      h("button", { type: "button", "data-key": column.key, title: column.hint, click: press },
        column.title, h("span", { class: "arrow", "aria-hidden": "true" }, isSorted ? (this.#sort.down ? "▼" : "▲") : "")));
  }

  #grow(until) {
    const { target } = this.#current;
    for (const edge of this.order.slice(this.#rows.length, until)) {
      const cells = this.columns.map((column, place) => {
        const side = column.sign ? sideOf(column.sign(edge)) : "";
        const cell = h(place === 0 ? "th" : "td",
          { class: side ? `${column.class} ${side}` : column.class, scope: place === 0 ? "row" : null }, column.text(edge));
        if (column.bar) cell.style.setProperty("--bar", `${Math.round(column.bar(edge) * 100)}%`);
        return cell;
      });
      const row = h("tr", { "data-edge": edge, tabindex: this.#rows.length === 0 ? 0 : -1 }, cells);
      if (target.truth?.[edge]) row.classList.add("true");
      this.#rows.push(row);
      this.body.append(row);
    }
    const left = this.order.length - this.#rows.length;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show more (${whole(left)} left)`;
    this.caption.textContent = `${whole(this.order.length)} of ${whole(target.wholeEdges)} edges`;
  }

  #showMore() {
    const first = this.#rows.length;
    this.#grow((this.#shown = first + 200));
    this.#rows[first]?.focus();
  }

  /** Mark the chosen edge's row, and bring it into view. */
  mark(edge, scroll) {
    this.#marked = edge;
    this.body.querySelector(".chosen")?.classList.remove("chosen");
    if (edge < 0) return;
    const place = this.order.indexOf(edge);
    if (place < 0) return;
    if (place >= this.#rows.length) this.#grow((this.#shown = place + 20));
    const row = this.#rows[place];
    row.classList.add("chosen");
    this.#rove(row);
    if (scroll) {
      const [top, bottom] = [row.offsetTop - this.head.offsetHeight - 30, row.offsetTop + row.offsetHeight];
      if (this.scroller.scrollTop > top) this.scroller.scrollTop = top;
      else if (this.scroller.scrollTop + this.scroller.clientHeight < bottom) {
        this.scroller.scrollTop = bottom - this.scroller.clientHeight;
      }
    }
  }

  /** One row at a time is in the order of the Tab key. */
  #rove(row) {
    for (const other of this.body.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    row.tabIndex = 0;
  }

  #focused(event) {
    const edge = edgeOf(event.target);
    if (edge >= 0) this.choose(edge);
  }

  #keys(event) {
    const place = this.#rows.indexOf(event.target.closest("tr"));
    const to = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: this.order.length - 1 }[event.key];
    if (to === undefined || to < 0 || to >= this.order.length) return;
    event.preventDefault();
    if (to >= this.#rows.length) this.#grow((this.#shown = to + 20));
    this.#rove(this.#rows[to]);
    this.#rows[to].focus();
  }
}

/** The columns of the table; those that are `isMore` only stand there if they are asked for. */
function columns(content, target, method, protocol) {
  const { source, destination } = target;
  const effect = target.effects[protocol];
  // Occlusion's scores are the effects of deleting edges: one column is enough.
  const isEffect = Boolean(effect) && target.scores[method].every((value, edge) => Math.abs(value - effect.pc[edge]) <= SAME);
  const score = ({ name, label }) => {
    const values = target.scores[name];
    const bars = strengths(values);
    return {
      key: `score ${name}`, title: label, class: name === method ? "number barred" : "number", down: true, hint: `score by ${label}`,
      text: (edge) => (values[edge] !== 0 && Math.abs(values[edge]) < NOISE * bars.largest ? "≈ 0" : number(values[edge])),
      order: (edge) => size(values[edge]), sign: (edge) => values[edge],
      bar: name === method ? (edge) => Math.abs(bars.of[edge]) : null, isMore: name !== method,
    };
  };
  const measured = (key, title, values, hint, isMore) => ({
    key, title, class: "number wrap", down: true, hint, isMore,
    text: (edge) => signed(values[edge]), order: (edge) => size(values[edge]), sign: (edge) => (key === "pc" ? values[edge] : 0),
  });
  return [
    {
      key: "edge", title: "edge", class: "name", down: false, hint: "source → destination",
      text: (edge) => [h("span", { class: "ends", title: edgeName(target, edge) }, edgeName(target, edge, LONGEST)), about(target, edge)],
      order: (edge) => target.nodes[source[edge]] * 2 ** 26 + target.nodes[destination[edge]],
    },
    score(content.methods.find(({ name }) => name === method)),
    effect ? measured("pc", content.dropName, effect.pc,
      content.predictsNumbers ? "decline of the predicted number" : "ΔPC: decline of the predicted class's probability", isEffect) : null,
    effect && !content.predictsNumbers ? {
      key: "after", title: "prediction then", class: "after", down: true, hint: "prediction after the reduction; changed classes first",
      text: (edge) => h("span", { title: afterwards(content, target, effect, edge) }, afterwards(content, target, effect, edge, LONGEST)), order: (edge) => effect.changed[edge] * 2 + size(effect.pc[edge]),
    } : null,
    effect && !content.predictsNumbers ? measured("ne", "loss of certainty", effect.ne, "ΔNE: rise of the entropy", true) : null,
    ...content.methods.filter(({ name }) => name !== method).map(score),
    target.truth ? {
      key: "truth", title: "true", class: "flag", down: true, hint: "edges that are known to explain the target", isMore: true,
      text: (edge) => (target.truth[edge] ? "true" : ""), order: (edge) => target.truth[edge],
    } : null,
    content.relations ? {
      key: "relation", title: "relation", class: "relation", down: false, hint: "the relation that the edge belongs to", isMore: true,
      text: (edge) => target.relationName(edge), order: (edge) => content.relations.indexOf(target.relationName(edge)),
    } : null,
  ].filter(Boolean);
}

/** What else is to be said of an edge, small under its name. */
function about(target, edge) {
  const words = [target.relationName(edge), target.truth?.[edge] ? "true explanation" : ""].filter(Boolean);
  return words.length > 0 ? h("small", {}, words.join(" · ")) : "";
}

/** Whether a value speaks for or against the prediction; a class of style. */
const sideOf = (value) => (value < 0 ? "against" : "");

function compare(a, b) {
  const [x, y] = [Number.isNaN(a) ? -Infinity : a, Number.isNaN(b) ? -Infinity : b];
  return x === y ? 0 : x < y ? -1 : 1;
}

function edgeOf(element) {
  return Number(element.closest("tr[data-edge]")?.dataset.edge ?? -1);
}
