// The explorer: what is looked at (one state), and the parts that show it.

import { EFFECT, ranking, strengths } from "./data.js";
import { h, s, select } from "./dom.js";
import { edgeCard, edgeSentence, nodeCard } from "./edge_card.js";
import { EdgeTable } from "./edge_table.js";
import { copy, saveCsv, saveGraphml, savePng, saveSvg } from "./export.js";
import { count, number, percent, whole } from "./format.js";
import { term } from "./glossary.js";
import { partLayout, wholeLayout } from "./layout.js";
import { neighbourhoodScene } from "./neighbourhood.js";
import { groupColor } from "./palette.js";
import { Picture } from "./picture.js";
import { outline } from "./shapes.js";
import { TargetList } from "./target_list.js";
import { FIRST_NODES, growTree, MOST_NODES, treeScene } from "./tree.js";
import { Viewport } from "./viewport.js";
import { WhatIf } from "./what_if.js";

const FEW = 90;
const AT_FIRST = 60;
const NONE = "nothing";
const WIDE = 760;

export class Explorer {
  #visible = new Uint8Array(0);
  #layout = null;
  #tree = null;
  #hovered = null;

  /** `changed(state)` is told of everything that the reader chose, to keep it in the address; `link()` gives that address. */
  constructor(content, colors, state, changed, link = null) {
    this.content = content;
    this.colors = colors;
    this.changed = changed;
    this.link = link;
    // `strongest` 0: all edges of a small neighbourhood, and of a large one as many as can be read.
    this.state = {
      target: 0, method: content.opensWith ?? content.methods[0].name, beside: NONE, protocol: content.protocols[0]?.name ?? "", view: "graph",
      strongest: 0, edge: -1, node: -1, step: -1, loops: true, apart: false, sized: false, arcs: false, columns: false, scale: "own", cut: [], ...state,
    };
    this.viewport = new Viewport();
    const pointed = { hover: (hit, event) => this.#hover(hit, event), choose: (hit, event) => this.#chooseHit(hit, event) };
    this.pictures = [new Picture(this.viewport, pointed), new Picture(this.viewport, pointed)];
    this.table = new EdgeTable({
      choose: (edge) => this.choose(edge, false), hover: (edge) => this.#hover(edge < 0 ? null : { edge, step: -1 }, null),
      ask: (asked) => this.set(asked),
    });
    this.list = new TargetList(content, (position) => this.set({ target: position }), state, (asked) => {
      Object.assign(this.state, asked);
      this.changed(this.state);
    });
    this.whatIf = new WhatIf(content, { toggle: (edge) => this.cut(edge), clear: () => this.set({ cut: [] }) });
    this.tooltip = h("div", { class: "card floating", role: "tooltip", hidden: true });
    this.card = h("section", { class: "card docked", "aria-label": "What is chosen", hidden: true });
    this.live = h("div", { class: "hidden-text", "aria-live": "polite" });
    this.heading = h("h2", { class: "target-name" });
    this.about = h("p", { class: "about" });
    this.note = h("span", { class: "notes", role: "status" });
    this.legend = h("ul", { class: "legend groups", "aria-label": content.groups ? `Colours: ${content.groups.meaning}` : "Colours" });
    this.element = this.#build();
    this.#show();
    new ResizeObserver(() => this.#resized()).observe(this.stage);
  }

  get target() {
    return this.content.target(this.state.target);
  }

  #build() {
    const { content } = this;
    this.stage = h("div", {
      class: "stage", tabindex: 0, role: "group", "aria-roledescription": "picture",
      "aria-label": "Picture. Arrow keys go from edge to edge by score, Page keys to other targets, plus and minus zoom, 0 fits.",
      keydown: (event) => this.#keys(event), blur: () => this.#hover(null, null),
    }, this.pictures[0].element, this.pictures[1].element);
    const tool = (text, label, click) => h("button", { type: "button", "aria-label": label, title: label, click }, text);
    this.all = h("button", { type: "button", class: "all", click: () => this.set({ strongest: Infinity }) }, "Show all");
    const files = h("details", { class: "menu" }, h("summary", {}, "Save"), h("div", { class: "entries" },
      tool("Picture (SVG)", "Save the picture as SVG", () => this.#save(saveSvg)),
      tool("Picture (PNG)", "Save the picture as PNG", () => this.#save(savePng)),
      tool("Edges (CSV)", "Save all edges as a CSV table", () => saveCsv(content, this.target, this.#fileName())),
      tool("Graph (GraphML)", "Save the graph as GraphML", () => saveGraphml(content, this.target, this.#fileName()))));
    files.addEventListener("focusout", (event) => {
      if (!files.contains(event.relatedTarget)) files.open = false;
    });
    return h("section", { class: "explorer", "aria-label": "Explorer" },
      h("div", { class: "side" }, this.list.element),
      h("div", { class: "middle" },
        h("div", { class: "heading" },
          tool("‹", "Previous target", () => this.set({ target: this.list.neighbour(-1) })),
          tool("›", "Next target", () => this.set({ target: this.list.neighbour(1) })),
          h("div", {}, this.heading, this.about)),
        h("div", { class: "frame" }, this.stage, h("div", { class: "zoom" },
          tool("+", "Zoom in", () => this.viewport.zoom(1.4)),
          tool("−", "Zoom out", () => this.viewport.zoom(1 / 1.4)),
          tool("Fit", "Fit the picture", () => this.viewport.fit()))),
        this.whatIf.element,
        this.legend,
        h("p", { class: "left-out" }, this.note, this.all),
        this.#fields(),
        h("div", { class: "controls" }, this.#views(), files, this.link ? this.#linkButton() : null),
        this.#filters()),
      h("div", { class: "wide" }, this.table.element, this.card),
      this.tooltip, this.live);
  }

  /** What the picture shows: the method, what it is compared with, and how edges are reduced. */
  #fields() {
    const { content, state } = this;
    const methods = content.methods.map(({ name, label }) => [name, label]);
    const effect = content.protocols.length > 0 ? [["what really happens", [[EFFECT, content.dropName]]]] : [];
    const beside = [[NONE, "nothing"], ["scores", methods], ...effect];
    const field = (label, options, key, word, extra) => {
      const { element, control } = select(label, options, state[key], (value) => this.set({ [key]: value }));
      if (key === "beside") this.besideControl = control;
      return h("div", { class: "with-term" }, element, term(word, extra));
    };
    const meanings = content.protocols.filter(({ meaning }) => meaning).map(({ name, meaning }) => `${name}: ${meaning}`);
    return h("div", { class: "controls" },
      field("Method", methods, "method", "method"),
      field("Compare with", beside, "beside", "compare"),
      content.protocols.length > 0 ? field("Reduce an edge by", content.protocols.map(({ name }) => [name, name]), "protocol", "protocol", meanings) : null);
  }

  #views() {
    const { content } = this;
    this.views = {};
    const view = (name, text) => (this.views[name] = h("button", { type: "button", click: () => this.set({ view: name, step: -1 }) }, text));
    const hasTree = content.targets.some((target) => target.layers);
    const switcher = h("div", { class: "switch", role: "group", "aria-label": "View" },
      view("graph", content.kind === "graph" ? "Graph" : "Neighbourhood"), hasTree ? view("tree", "Computation tree") : null);
    return h("div", { class: "view" }, switcher, hasTree ? term("tree") : null);
  }

  /** What of the picture is drawn. */
  #filters() {
    const { content, state } = this;
    this.filter = h("input", { type: "range", min: 0, max: 1000, step: 1, input: () => this.#filtered() });
    this.filterText = h("output", {});
    const check = (key, text, [off, on] = [false, true]) => {
      const box = h("input", { type: "checkbox", change: () => this.set({ [key]: box.checked ? on : off }) });
      box.checked = state[key] === on;
      return h("label", { class: "check" }, box, text);
    };
    this.sharedCheck = check("scale", "one scale for both", ["own", "shared"]);
    return h("div", { class: "controls" },
      h("label", { class: "field filter" }, h("span", {}, "Strongest edges "), this.filterText, this.filter),
      h("div", { class: "checks" }, check("loops", "self-loops"), check("apart", "unconnected nodes"),
        content.targets.some((target) => target.nodeScores) ? check("sized", `nodes by ${content.nodeMethod ?? "score"}`) : null,
        content.targets.some((target) => target.arcs) ? check("arcs", "attention over all nodes") : null,
        this.sharedCheck));
  }

  #linkButton() {
    const button = h("button", {
      type: "button",
      click: async () => {
        this.changed(this.state);
        button.textContent = (await copy(this.link())) ? "Link copied" : "Copy the address above";
        setTimeout(() => (button.textContent = "Copy link"), 2500);
      },
    }, "Copy link");
    return button;
  }

  /** Look at something else. */
  set(changes) {
    const isOther = changes.target !== undefined && changes.target !== this.state.target;
    Object.assign(this.state, changes);
    if (isOther) Object.assign(this.state, { edge: -1, node: -1, step: -1, cut: [], strongest: this.state.strongest === Infinity ? Infinity : 0 });
    if (isOther || changes.view) this.viewport.fit();
    this.#hovered = null;
    this.#show();
    this.changed(this.state);
  }

  /** Take an edge out of the graph, or put it back; without a model one edge at a time. */
  cut(edge) {
    const { cut } = this.state;
    const others = this.content.answers(this.target) ? cut : [];
    this.set({ cut: cut.includes(edge) ? cut.filter((one) => one !== edge) : [...others, edge] });
  }

  /** Other colours. */
  recolor(colors) {
    this.colors = colors;
    this.#draw();
  }

  #show() {
    const { content, state, target } = this;
    if (state.view === "tree" && !target.layers) state.view = "graph";
    this.#tree = state.view === "tree" ? growTree(target, state.strongest === Infinity ? MOST_NODES : FIRST_NODES) : null;
    this.heading.textContent = `${content.noun} ${content.targetName(target)}`;
    this.about.replaceChildren(...this.#describe());
    for (const [name, button] of Object.entries(this.views)) button.setAttribute("aria-pressed", String(name === state.view));
    this.filter.disabled = this.besideControl.disabled = Boolean(this.#tree);
    this.sharedCheck.hidden = this.#panels().length < 2;
    this.#choose();
    this.filter.value = sliderOf(this.#most(), target.size);
    this.list.mark(state.target);
    this.#draw();
    this.#list();
    this.whatIf.show(target, state.cut, state.protocol);
  }

  #resized() {
    const size = `${this.stage.clientWidth} ${this.stage.clientHeight}`;
    if (size === this.size) return;
    this.size = size;
    this.viewport.fit();
    this.#draw();
  }

  #describe() {
    const { content, target } = this;
    const parts = [];
    if (target.predicted !== undefined) {
      const right = target.true === target.predicted ? ", which is right" : "";
      const label = target.label ? `${target.label}: ` : "";
      parts.push(`${label}predicted ${content.className(target.predicted)} (${percent(target.confidence)})${right}`);
    }
    if (target.true !== undefined && target.true !== target.predicted) {
      parts.push(target.predicted === undefined ? `truly ${content.className(target.true)}`
        : h("strong", { class: "wrong" }, `wrong: it is ${content.className(target.true)}`));
    }
    parts.push(`${count(target.wholeNodes, "node")}, ${count(target.wholeEdges, "edge")} ${content.kind === "graph" ? "" : "in its neighbourhood"}`);
    return parts.flatMap((part, place) => (place > 0 ? [" · ", part] : [part]));
  }

  /** How many edges are drawn at most. */
  #most() {
    const { strongest } = this.state;
    const { size } = this.target;
    return strongest > 0 ? Math.min(strongest, size) : size <= FEW ? size : AT_FIRST;
  }

  /** Which edges are among the strongest, by either of the panels; unasked, true edges are shown too. */
  #choose() {
    const { content, state, target } = this;
    this.#visible = new Uint8Array(target.size);
    const most = this.#most();
    for (const shown of this.#panels()) {
      for (const edge of ranking(content.values(target, shown, state.protocol)).slice(0, most)) this.#visible[edge] = 1;
    }
    if (!state.strongest) target.truth?.forEach((isTrue, edge) => { if (isTrue) this.#visible[edge] = 1; });
    if (!state.loops) for (let edge = 0; edge < target.size; edge++) if (target.source[edge] === target.destination[edge]) this.#visible[edge] = 0;
    this.#layout = state.apart ? wholeLayout(target) : partLayout(target, this.#visible);
    const values = content.values(target, state.method, state.protocol);
    const least = ranking(values)[most - 1];
    this.filterText.textContent = most === target.size ? `all ${whole(most)}` : `${whole(most)} of ${whole(target.size)} (${values.some((value) => value < 0) ? "size " : ""}≥ ${number(Math.abs(values[least]))})`;
    this.filter.setAttribute("aria-valuetext", this.filterText.textContent);
  }

  #panels() {
    const { state } = this;
    return state.beside === NONE || this.#tree ? [state.method] : [state.method, state.beside];
  }

  #filtered() {
    // All edges stay all edges for the next target, which may have more.
    this.state.strongest = this.filter.value === this.filter.max ? Infinity : countOf(Number(this.filter.value), this.target.size);
    this.#choose();
    this.#draw();
    this.#list();
    this.changed(this.state);
  }

  #list() {
    const { content, state, target } = this;
    this.table.show(content, target, this.#visible, state);
    this.table.mark(state.edge, true);
  }

  #draw() {
    const { content, state, target, colors } = this;
    const panels = this.#panels();
    this.stage.classList.toggle("two", panels.length > 1);
    this.stage.classList.toggle("stacked", panels.length > 1 && this.stage.clientWidth < WIDE);
    this.pictures[1].element.hidden = panels.length < 2;
    const name = `${content.noun.toLowerCase()} ${content.targetName(target)}`;
    const drawn = this.#visible.reduce((sum, flag) => sum + flag, 0);
    const groupOf = (node) => target.group?.[node] ?? -1;
    const all = panels.map((shown) => content.values(target, shown, state.protocol));
    const largest = state.scale === "shared" && panels.length > 1 ? Math.max(...all.map((values) => strengths(values).largest)) : null;
    panels.forEach((shown, place) => {
      const picture = this.pictures[place];
      if (this.#tree) {
        const part = this.#tree.length < target.treeSize;
        const title = "attention on each step";
        picture.draw(treeScene(content, target, this.#tree, picture.box, colors), colors, title,
          `Computation tree of ${name}: ${count(this.#tree.length, "node")} drawn${part ? `, of ${whole(target.treeSize)}` : ""}`, groupOf);
      } else {
        const title = content.valuesLabel(shown, state.protocol);
        picture.draw(neighbourhoodScene(content, target, all[place], this.#visible, this.#layout, picture.box, colors, largest, state), colors, title,
          `Neighbourhood of ${name} by ${title}: ${count(drawn, "edge")} drawn; the table lists them`, groupOf);
      }
    });
    this.#say(drawn, panels.length > 1 && largest === null);
    this.#drawLegend();
    this.#highlight();
  }

  /** What is not drawn, and how to see it. */
  #say(drawn, ownScales) {
    const { target } = this;
    const notes = [];
    if (this.#tree) {
      notes.push("Point at a step to see the product along its path. ×n: an edge that occurs n times; dashed: a self-loop.");
      if (this.#tree.length < target.treeSize) notes.push(`The ${whole(this.#tree.length)} tree nodes with the most attention to the root, of ${whole(target.treeSize)}.`);
      this.all.hidden = this.#tree.length >= Math.min(target.treeSize, MOST_NODES);
    } else {
      if (drawn < target.size) notes.push(`${whole(drawn)} of ${whole(target.size)} edges are drawn${this.state.strongest || target.size > FEW ? ", the strongest" : ""}.`);
      if (ownScales) notes.push("Each picture has its own scale: colours compare edges within it.");
      this.all.hidden = this.#most() >= target.size;
    }
    if (target.leftOut) notes.push(`${target.leftOut}.`);
    this.note.textContent = notes.join(" ");
  }

  /** Colours and shapes of the nodes that are on screen. */
  #drawLegend() {
    const { content, colors } = this;
    const seen = new Set(this.#panels().flatMap((_, place) => [...this.pictures[place].groups]));
    this.legend.hidden = !content.groups || seen.size === 0;
    if (this.legend.hidden) return;
    const entries = content.groups.names.map((name, group) => [name, group]).filter(([, group]) => seen.has(group));
    const listed = entries.filter(([, group]) => group < colors.groups.length);
    const item = (name, fill, shape) => {
      const [tag, place] = outline({ x: 7, y: 7, r: 5.2, shape });
      return h("li", {}, s("svg", { class: "sample", viewBox: "0 0 14 14", "aria-hidden": "true" }, s(tag, { ...place, fill, stroke: colors.rim })), name);
    };
    this.legend.replaceChildren(h("li", { class: "meaning" }, `${content.groups.meaning}:`),
      ...listed.map(([name, group]) => item(name, groupColor(colors, group), content.groups.shapes ? group : 0)),
      ...(entries.length > listed.length ? [item("others", colors.other, 0)] : []));
  }

  #chooseHit(hit, event) {
    if (hit?.node !== undefined) {
      this.choose(-1);
      this.state.node = hit.node;
      this.#highlight();
      return;
    }
    if (hit && event.shiftKey) this.cut(hit.edge);
    else this.choose(hit?.edge ?? -1, true, hit?.step ?? -1);
  }

  /** Keep one edge in view, or none (-1); choosing it again lets it go. */
  choose(edge, scroll = true, step = -1) {
    const isSame = scroll && edge === this.state.edge && step === this.state.step;
    Object.assign(this.state, { edge: isSame ? -1 : edge, step: isSame ? -1 : step, node: -1 });
    this.#hovered = null;
    this.table.mark(this.state.edge, scroll);
    this.#highlight();
    if (this.state.edge >= 0) {
      const { content, state, target } = this;
      this.live.textContent = edgeSentence(content, target, edge, state.method, state.protocol);
    }
    this.changed(this.state);
  }

  #hover(hit, event) {
    if (hit === null && this.#hovered === null) return;
    const isOther = JSON.stringify(hit) !== JSON.stringify(this.#hovered);
    this.#hovered = hit;
    if (isOther) this.#highlight();
    const onPicture = hit !== null && event !== null && (hit.node !== undefined || hit.edge !== this.state.edge);
    this.tooltip.hidden = !onPicture;
    if (!onPicture) return;
    if (isOther) this.tooltip.replaceChildren(...this.#cardOf(hit));
    this.#place(event);
  }

  #cardOf(hit) {
    const { content, state, target } = this;
    if (hit.node === undefined) return edgeCard(content, target, hit.edge, this.#tree, state.protocol);
    const values = content.values(target, state.method, state.protocol);
    return nodeCard(content, target, hit.node, values, this.#visible, content.label[state.method]);
  }

  /** Show the edge under the pointer, or else the chosen one; the card is always the chosen one's. */
  #highlight() {
    const { edge, node, step, cut } = this.state;
    const shown = this.#hovered?.edge ?? edge;
    const way = this.#hovered ? this.#hovered.step ?? -1 : step;
    this.#panels().forEach((_, place) => this.pictures[place].highlight(shown, way, cut));
    this.card.hidden = edge < 0 && node < 0;
    if (this.#hovered === null) this.tooltip.hidden = true;
    if (this.card.hidden) return;
    const close = h("button", { type: "button", class: "close", "aria-label": "Let go", click: () => this.choose(-1) }, "×");
    const parts = this.#cardOf(node >= 0 ? { node } : { edge });
    if (edge >= 0 && this.content.protocols.length > 0) {
      const text = cut.includes(edge) ? "Put this edge back" : "Take this edge out";
      parts.push(h("button", { type: "button", class: "take", click: () => this.cut(edge) }, text));
    }
    this.card.replaceChildren(close, ...parts);
  }

  /** Put the tooltip beside the pointer, inside the explorer and the window. */
  #place({ clientX, clientY }) {
    const frame = this.element.getBoundingClientRect();
    const [width, height] = [this.tooltip.offsetWidth, this.tooltip.offsetHeight];
    const left = clientX + 22 + width < frame.right ? clientX + 22 : clientX - 22 - width;
    const top = Math.max(frame.top, Math.min(clientY - height / 3, innerHeight - height - 8));
    this.tooltip.style.left = `${Math.max(0, left - frame.left)}px`;
    this.tooltip.style.top = `${top - frame.top}px`;
  }

  #keys(event) {
    const actions = {
      ArrowRight: () => this.#move(1), ArrowDown: () => this.#move(1),
      ArrowLeft: () => this.#move(-1), ArrowUp: () => this.#move(-1),
      PageDown: () => this.set({ target: this.list.neighbour(1) }),
      PageUp: () => this.set({ target: this.list.neighbour(-1) }),
      "+": () => this.viewport.zoom(1.4), "=": () => this.viewport.zoom(1.4), "-": () => this.viewport.zoom(1 / 1.4),
      0: () => this.viewport.fit(),
      Delete: () => this.state.edge >= 0 && this.cut(this.state.edge),
      Escape: () => this.choose(-1),
    };
    if (!(event.key in actions) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  /** Go to the next edge by score, of those that are drawn. */
  #move(step) {
    const { content, state, target } = this;
    const order = ranking(content.values(target, state.method, state.protocol)).filter((edge) => this.pictures[0].shows(edge));
    if (order.length === 0) return;
    const place = order.indexOf(state.edge);
    const next = place < 0 ? (step > 0 ? 0 : order.length - 1) : (place + step + order.length) % order.length;
    if (order[next] !== state.edge) this.choose(order[next]);
  }

  #fileName(parts = []) {
    return [this.content.kind, this.content.targetId(this.target), ...parts].join("_").replaceAll(/[^\w.-]+/g, "_");
  }

  #save(write) {
    const what = this.#tree ? ["tree"] : this.#panels().map((shown) => shown || `dpc_${this.state.protocol}`);
    write(this.#panels().map((_, place) => this.pictures[place]), this.content, this.colors, this.#fileName(what));
  }
}

/** The filter's slider runs evenly through magnitudes: few edges matter most. */
const countOf = (slider, size) => Math.max(1, Math.round(Math.exp((slider / 1000) * Math.log(size))));
const sliderOf = (kept, size) => Math.round((size > 1 ? Math.log(kept) / Math.log(size) : 1) * 1000);
