// The explorer: what is looked at (one state), and the parts that show it.

import { EFFECT, ranking } from "./data.js";
import { h, select } from "./dom.js";
import { edgeCard, edgeSentence } from "./edge_card.js";
import { EdgeTable } from "./edge_table.js";
import { downloadSvg } from "./export.js";
import { count, number, whole } from "./format.js";
import { neighbourhoodScene } from "./neighbourhood.js";
import { Picture } from "./picture.js";
import { TargetList } from "./target_list.js";
import { growTree, MOST_NODES, treeScene } from "./tree.js";
import { Viewport } from "./viewport.js";

const AT_FIRST = 300;
const NONE = "nothing";

export class Explorer {
  #visible = new Uint8Array(0);
  #tree = null;
  #hovered = -1;

  /** `changed(state)` is told of everything that the reader chose, to keep it in the address. */
  constructor(content, colors, state, changed) {
    this.content = content;
    this.colors = colors;
    this.changed = changed;
    this.state = {
      target: 0, method: content.methods[0].name, beside: NONE, protocol: content.protocols[0]?.name ?? "", view: "graph",
      strongest: AT_FIRST, edge: -1, ...state,
    };
    this.viewport = new Viewport();
    const pointed = { hover: (edge, event) => this.#hover(edge, event), choose: (edge) => this.choose(edge) };
    this.pictures = [new Picture(this.viewport, pointed), new Picture(this.viewport, pointed)];
    this.table = new EdgeTable({ choose: (edge) => this.choose(edge, false), hover: (edge) => this.#hover(edge, null) });
    this.list = new TargetList(content, (position) => this.set({ target: position }));
    this.tooltip = h("div", { class: "card floating", role: "tooltip", hidden: true });
    this.card = h("section", { class: "card docked", "aria-label": "Chosen edge", hidden: true });
    this.live = h("div", { class: "hidden-text", "aria-live": "polite" });
    this.heading = h("h2", { class: "target-name" });
    this.about = h("p", { class: "about" });
    this.note = h("p", { class: "notes left-out", role: "status" });
    this.element = this.#build();
    this.#show();
    new ResizeObserver(() => this.#resized()).observe(this.stage);
  }

  get target() {
    return this.content.target(this.state.target);
  }

  #build() {
    const { content, state } = this;
    const methods = content.methods.map(({ name, label }) => [name, label]);
    const effect = content.protocols.length > 0 ? [["what reducing does", [[EFFECT, "ΔPC of the protocol"]]]] : [];
    const controls = [
      select("Method", methods, state.method, (method) => this.set({ method })),
      select("Beside it", [[NONE, "nothing"], ["scores", methods], ...effect], state.beside, (beside) => this.set({ beside })),
    ];
    this.besideControl = controls[1].control;
    if (content.protocols.length > 0) {
      const options = content.protocols.map(({ name }) => [name, name]);
      const protocol = select("Protocol", options, state.protocol, (chosen) => this.set({ protocol: chosen }));
      protocol.control.title = "What reducing an edge means";
      controls.push(protocol);
    }
    this.views = {};
    const view = (name, text) => (this.views[name] = h("button", { type: "button", click: () => this.set({ view: name }) }, text));
    const switcher = h("div", { class: "switch", role: "group", "aria-label": "View" },
      view("graph", content.kind === "node" ? "Neighbourhood" : "Graph"),
      content.targets.some((target) => target.layers) ? view("tree", "Computation tree") : null);
    this.filter = h("input", { type: "range", min: 0, max: 1000, step: 1, input: () => this.#filtered() });
    this.filterText = h("output", {});
    this.stage = h("div", {
      class: "stage", tabindex: 0, role: "group", "aria-roledescription": "picture",
      "aria-label": "Picture. Arrow keys go from edge to edge by score, Page keys to other targets, plus and minus zoom, 0 fits.",
      keydown: (event) => this.#keys(event), blur: () => this.#hover(-1, null),
    }, this.pictures[0].element, this.pictures[1].element);
    const tool = (text, label, click) => h("button", { type: "button", "aria-label": label, title: label, click }, text);
    return h("section", { class: "explorer", "aria-label": "Explorer" },
      h("div", { class: "side" }, this.list.element),
      h("div", { class: "middle" },
        h("div", { class: "heading" },
          tool("‹", "Previous target", () => this.set({ target: this.list.neighbour(-1) })),
          tool("›", "Next target", () => this.set({ target: this.list.neighbour(1) })),
          h("div", {}, this.heading, this.about)),
        h("div", { class: "controls" }, switcher, controls.map((control) => control.element),
          h("label", { class: "field filter" }, h("span", {}, "Strongest edges "), this.filterText, this.filter)),
        this.stage,
        h("div", { class: "tools" },
          tool("+", "Zoom in", () => this.viewport.zoom(1.4)),
          tool("−", "Zoom out", () => this.viewport.zoom(1 / 1.4)),
          tool("Fit", "Fit the picture", () => this.viewport.fit()),
          tool("Save SVG", "Save the picture as SVG", () => this.#save()),
          this.note)),
      h("div", { class: "wide" }, this.table.element, this.card),
      this.tooltip, this.live);
  }

  /** Look at something else. */
  set(changes) {
    const isOther = changes.target !== undefined && changes.target !== this.state.target;
    Object.assign(this.state, changes);
    if (isOther) Object.assign(this.state, { edge: -1 });
    if (isOther || changes.view) this.viewport.fit();
    this.#hovered = -1;
    this.#show();
    this.changed(this.state);
  }

  /** Other colours. */
  recolor(colors) {
    this.colors = colors;
    this.#draw();
  }

  #show() {
    const { content, state, target } = this;
    if (state.view === "tree" && !target.layers) state.view = "graph";
    this.#tree = state.view === "tree" ? growTree(target) : null;
    this.heading.textContent = `${content.kind === "node" ? "Node" : "Graph"} ${content.targetName(target)}`;
    this.about.replaceChildren(...this.#describe());
    for (const [name, button] of Object.entries(this.views)) button.setAttribute("aria-pressed", String(name === state.view));
    this.filter.disabled = this.besideControl.disabled = Boolean(this.#tree);
    this.filter.value = sliderOf(Math.min(state.strongest, target.size), target.size);
    this.#choose();
    this.list.mark(state.target);
    this.#draw();
    this.#list();
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
      parts.push(`predicted ${content.className(target.predicted)} (${number(target.confidence)})`);
    }
    if (target.true !== undefined) {
      const wrong = target.predicted !== undefined && target.predicted !== target.true;
      parts.push(wrong ? h("strong", { class: "wrong" }, `wrong: it is ${content.className(target.true)}`)
        : `truly ${content.className(target.true)}`);
    }
    parts.push(`${count(target.wholeNodes, "node")}, ${count(target.wholeEdges, "edge")} in its neighbourhood`);
    return parts.flatMap((part, place) => (place > 0 ? [" · ", part] : [part]));
  }

  /** Which edges are among the strongest, by either of the panels. */
  #choose() {
    const { content, state, target } = this;
    this.#visible = new Uint8Array(target.size);
    const most = Math.min(state.strongest, target.size);
    for (const shown of this.#panels()) {
      for (const edge of ranking(content.values(target, shown, state.protocol)).slice(0, most)) this.#visible[edge] = 1;
    }
    const values = content.values(target, state.method, state.protocol);
    const least = ranking(values)[most - 1];
    this.filterText.textContent = most === target.size ? `all ${whole(most)}` : `${whole(most)} of ${whole(target.size)} (≥ ${number(values[least])})`;
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
    this.table.show(content, target, this.#visible, state.method, state.protocol);
    this.table.mark(state.edge, true);
  }

  #draw() {
    const { content, state, target, colors } = this;
    const panels = this.#panels();
    this.stage.classList.toggle("two", panels.length > 1);
    this.pictures[1].element.hidden = panels.length < 2;
    const name = `${content.kind} ${content.targetName(target)}`;
    const visible = this.#visible.reduce((sum, flag) => sum + flag, 0);
    const notes = target.leftOut ? [target.leftOut] : [];
    panels.forEach((shown, place) => {
      const picture = this.pictures[place];
      if (this.#tree) {
        const part = this.#tree.length < target.treeSize;
        if (part) notes.push(`the ${whole(this.#tree.length)} tree nodes with the most attention to the root, of ${whole(target.treeSize)}`);
        const title = "attention (×n: an edge that occurs n times; dashed: a self-loop)";
        picture.draw(treeScene(target, this.#tree, picture.box, colors), colors, title,
          `Computation tree of ${name}: ${count(this.#tree.length, "node")} drawn${part ? `, of at most ${MOST_NODES}` : ""}`);
      } else {
        const values = content.values(target, shown, state.protocol);
        const title = content.valuesLabel(shown, state.protocol);
        picture.draw(neighbourhoodScene(target, values, this.#visible, picture.box, colors), colors, title,
          `Neighbourhood of ${name} by ${title}: ${count(target.nodes.length, "node")}, ${count(visible, "edge")} drawn; the table lists them`);
      }
    });
    this.note.textContent = notes.join("; ");
    this.#highlight();
  }

  /** Keep one edge in view, or none (-1); choosing it again lets it go. */
  choose(edge, scroll = true) {
    this.state.edge = scroll && edge === this.state.edge ? -1 : edge;
    this.#hovered = -1;
    this.table.mark(this.state.edge, scroll);
    this.#highlight();
    if (this.state.edge >= 0) {
      const { content, state, target } = this;
      this.live.textContent = edgeSentence(content, target, edge, state.method, state.protocol);
    }
    this.changed(this.state);
  }

  #hover(edge, event) {
    if (edge === this.#hovered && edge < 0) return;
    const isOther = edge !== this.#hovered;
    this.#hovered = edge;
    if (isOther) this.#highlight();
    const onPicture = edge >= 0 && event !== null && edge !== this.state.edge;
    this.tooltip.hidden = !onPicture;
    if (!onPicture) return;
    if (isOther) this.tooltip.replaceChildren(...edgeCard(this.content, this.target, edge, this.#tree));
    this.#place(event);
  }

  /** Show the edge under the pointer, or else the chosen one; the card is always the chosen one's. */
  #highlight() {
    const { edge } = this.state;
    const shown = this.#hovered >= 0 ? this.#hovered : edge;
    this.#panels().forEach((_, place) => this.pictures[place].highlight(shown));
    this.card.hidden = edge < 0;
    if (this.#hovered < 0) this.tooltip.hidden = true;
    if (edge < 0) return;
    const close = h("button", { type: "button", class: "close", "aria-label": "Let the edge go", click: () => this.choose(-1) }, "×");
    this.card.replaceChildren(close, ...edgeCard(this.content, this.target, edge, this.#tree));
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

  #save() {
    const { content, state, target } = this;
    const what = this.#tree ? ["tree"] : this.#panels().map((shown) => shown || `dpc_${state.protocol}`);
    const pictures = this.#panels().map((_, place) => this.pictures[place]);
    downloadSvg(pictures, [content.kind, target.id, ...what].join("_").replaceAll(/[^\w.-]+/g, "_"));
  }
}

/** The filter's slider runs evenly through magnitudes: few edges matter most. */
const countOf = (slider, size) => Math.max(1, Math.round(Math.exp((slider / 1000) * Math.log(size))));
const sliderOf = (kept, size) => Math.round((size > 1 ? Math.log(kept) / Math.log(size) : 1) * 1000);
