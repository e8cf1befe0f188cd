// attree's explorer, MIT licence. Made from web/src by web/build.js; it holds no code of others.

// src/dom.js
var SVG = "http://www.w3.org/2000/svg";
function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === void 0 || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== void 0 && child !== ""));
  return element;
}
function select(label, groups, value, change) {
  const option = ([key, text]) => h("option", { value: key, selected: key === value }, text);
  const entries = groups.map(
    (group) => Array.isArray(group[1]) ? h("optgroup", { label: group[0] }, group[1].map(option)) : option(group)
  );
  const control = h("select", { change: () => change(control.value) }, entries);
  return { element: h("label", { class: "field" }, h("span", {}, label), control), control };
}

// src/format.js
function number(value, digits = 4) {
  if (value === null || value === void 0 || Number.isNaN(value)) return "undefined";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e-4 && size < 1e6 ? String(Number(value.toPrecision(digits))) : value.toExponential(2);
  return text.replace("-", "−").replace("e−", "e-").replace("e+", "e");
}
function signed(value) {
  return value > 0 ? `+${number(value, 3)}` : number(value, 3);
}
function whole(value) {
  return Math.round(value).toLocaleString("en");
}
function count(value, noun) {
  return `${whole(value)} ${noun}${value === 1 ? "" : "s"}`;
}
function short(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

// src/palette.js
var LIGHT = {
  name: "light",
  paper: "#ffffff",
  ink: "#222222",
  muted: "#5f6368",
  faint: "#d9d9d9",
  node: "#ffffff",
  rim: "#7a7f86",
  target: "#e69f00",
  onTarget: "#222222",
  truth: "#0072b2",
  chosen: "#111111",
  rising: ["#cfcfcf", "#f0a070", "#d55e00", "#5c1a00"],
  falling: ["#cfcfcf", "#7fc9b4", "#009e73", "#00402f"]
};
var DARK = {
  name: "dark",
  paper: "#15181d",
  ink: "#e8eaed",
  muted: "#a2a9b3",
  faint: "#343a43",
  node: "#23282f",
  rim: "#8a929d",
  target: "#e69f00",
  onTarget: "#15181d",
  truth: "#56b4e9",
  chosen: "#ffffff",
  rising: ["#3a4048", "#8f4312", "#f0803c", "#ffe3c2"],
  falling: ["#3a4048", "#0b6e54", "#2fc79b", "#d3fff0"]
};
var palette = (theme) => theme === "dark" ? DARK : LIGHT;
var channels = (color) => [1, 3, 5].map((start) => Number.parseInt(color.slice(start, start + 2), 16));
function colorOf(colors, strength) {
  const stops = strength < 0 ? colors.falling : colors.rising;
  const place2 = Math.min(1, Math.abs(strength)) * (stops.length - 1);
  const low = Math.min(Math.floor(place2), stops.length - 2);
  const [from, to] = [channels(stops[low]), channels(stops[low + 1])];
  return `rgb(${from.map((value, channel) => Math.round(value + (place2 - low) * (to[channel] - value))).join(",")})`;
}
function standingOut(colors, color) {
  const [paper, ink] = [channels(colors.paper), channels(colors.ink)];
  let own = channels(color);
  for (let step2 = 0; step2 < 20 && contrast(own, paper) < 3; step2 += 1) {
    own = own.map((value, channel) => value + 0.1 * (ink[channel] - value));
  }
  return `rgb(${own.map(Math.round).join(",")})`;
}
function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}
function luminance(color) {
  const [red, green, blue] = color.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
function ambientTheme() {
  const notebook = document.body.dataset.jpThemeLight;
  if (notebook) return notebook === "true" ? "light" : "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// src/curves.js
var LABELS = { acc: "accuracy", faithfulness: "faithfulness", truth_auroc: "ground-truth AUROC", loss: "loss" };
var DASHES = [null, "6 2.5", "2 2.5", "9 2.5 2 2.5"];
var SIZE = { width: 230, height: 130, left: 34, right: 8, top: 8, bottom: 20 };
function curvePanels(content, colors) {
  const panels = /* @__PURE__ */ new Map();
  const dash = dashes(content.methods);
  for (const curve of content.curves) {
    const points = curve.points.filter(([, value]) => value !== null);
    if (points.length === 0) continue;
    const own = { ...describe(content, curve.name), points };
    own.dash = dash[own.method];
    panels.set(own.panel, [...panels.get(own.panel) ?? [], own]);
  }
  if (panels.size === 0) return null;
  const steps = [...panels.values()].flat().flatMap((curve) => curve.points.map(([step2]) => step2));
  const range = [Math.min(...steps), Math.max(...steps)];
  const kinds = Object.keys(LABELS);
  const place2 = ([, [first]]) => kinds.includes(first.kind) ? kinds.indexOf(first.kind) : kinds.length;
  const sorted = [...panels].sort((a, b) => place2(a) - place2(b));
  const open = Math.max(2, sorted.filter((entry) => place2(entry) < kinds.length).length);
  const drawn = sorted.map(([title, curves]) => new Panel(title, curves, range, colors).element);
  const rest = drawn.slice(open);
  return h(
    "div",
    { class: "curves" },
    h("div", { class: "panels" }, drawn.slice(0, open)),
    rest.length > 0 ? h("details", {}, h("summary", {}, `${rest.length} more`), h("div", { class: "panels" }, rest)) : null
  );
}
function describe(content, name) {
  const words = name.split("/");
  const kind = words.at(-1);
  const title = LABELS[kind] ?? content.statistics[kind] ?? kind.replaceAll("_", " ");
  const isMethod = words[0] === "explain" && words.length > 2;
  const protocol = isMethod && words.length > 3 ? ` (${words[2]})` : "";
  const method = isMethod ? content.methods.findIndex((own) => own.name === words[1]) : -1;
  const label = isMethod ? content.label[words[1]] ?? words[1] : words.slice(0, -1).join(" ") || name;
  return { name, kind, panel: title + protocol, label, method, hue: content.methods[method]?.color };
}
function dashes(methods) {
  const taken = /* @__PURE__ */ new Set();
  return methods.map(({ color }, place2) => {
    const tries = DASHES.map((_, step2) => DASHES[(place2 + step2) % DASHES.length]);
    const dash = tries.find((one) => !taken.has(`${color} ${one}`)) ?? tries[0];
    taken.add(`${color} ${dash}`);
    return dash;
  });
}
var Panel = class {
  constructor(title, curves, range, colors) {
    this.curves = curves.map((curve, place2) => ({
      ...curve,
      dash: curve.method < 0 ? DASHES[place2 % DASHES.length] : curve.dash,
      color: curve.hue ? standingOut(colors, curve.hue) : colors.ink
    }));
    const values = curves.flatMap((curve) => curve.points.map(([, value]) => value));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    const across = SIZE.width - SIZE.left - SIZE.right;
    const up = SIZE.height - SIZE.top - SIZE.bottom;
    this.x = (step2) => SIZE.left + (step2 - range[0]) / (range[1] - range[0] || 1) * across;
    this.y = (value) => SIZE.top + (1 - (value - low + room) / (high - low + 2 * room)) * up;
    this.colors = colors;
    const last = this.curves.map((curve) => `${curve.label} ${number(curve.points.at(-1)[1])}`).join(", ");
    this.cursor = s("line", { y1: SIZE.top, y2: SIZE.height - SIZE.bottom, stroke: colors.muted, visibility: "hidden" });
    this.legend = h("ul", { class: "legend" });
    const svg = s("svg", {
      role: "img",
      viewBox: `0 0 ${SIZE.width} ${SIZE.height}`,
      "aria-label": `${title} while training; at the end: ${last}`
    }, this.#axes(low, high, range), this.cursor, this.curves.map((curve) => this.#line(curve)));
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect();
      const part = ((event.clientX - frame.left) / frame.width * SIZE.width - SIZE.left) / across;
      this.#read(range[0] + part * (range[1] - range[0]));
    });
    svg.addEventListener("pointerleave", () => this.#read(null));
    this.element = h("figure", { class: "curve" }, h("figcaption", {}, title), svg, this.legend);
    this.#read(null);
  }
  #axes(low, high, range) {
    const parts = [];
    const text = (x, y, anchor, content) => s("text", { x, y, "text-anchor": anchor, "font-size": 11, fill: this.colors.muted }, content);
    for (const value of ticks(low, high)) {
      const y = this.y(value);
      parts.push(
        s("line", { x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: y, y2: y, stroke: this.colors.faint }),
        text(SIZE.left - 6, y + 4, "end", number(value))
      );
    }
    parts.push(text(SIZE.left, SIZE.height - 8, "start", whole(range[0])), text(SIZE.width - SIZE.right, SIZE.height - 8, "end", `step ${whole(range[1])}`));
    return s("g", {}, parts);
  }
  #line(curve) {
    const points = curve.points.map(([step2, value]) => `${this.x(step2).toFixed(1)},${this.y(value).toFixed(1)}`);
    const [x, y] = points.at(-1).split(",");
    return s(
      "g",
      {},
      s("polyline", { points: points.join(" "), fill: "none", stroke: curve.color, "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": curve.dash }),
      s("circle", { cx: x, cy: y, r: 3, fill: curve.color })
    );
  }
  /** Show the values at a step, or those at the end. */
  #read(step2) {
    const nearest = (points) => step2 === null ? points.at(-1) : points.reduce((best, point) => Math.abs(point[0] - step2) < Math.abs(best[0] - step2) ? point : best);
    const found = this.curves.map((curve) => nearest(curve.points));
    this.legend.replaceChildren(...this.curves.map((curve, place2) => {
      const swatch = s("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: curve.color, "stroke-width": 2.5, "stroke-dasharray": curve.dash });
      return h("li", {}, s("svg", { class: "sample", viewBox: "0 0 22 8", "aria-hidden": "true" }, swatch), curve.label, h("b", {}, number(found[place2][1])));
    }));
    if (step2 === null) return this.cursor.setAttribute("visibility", "hidden");
    const at2 = this.x(found[0][0]);
    this.cursor.setAttribute("visibility", "visible");
    this.cursor.setAttribute("x1", at2);
    this.cursor.setAttribute("x2", at2);
    return void 0;
  }
};
function ticks(low, high) {
  const rough = (high - low) / 3 || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = power * ([1, 2, 5, 10].find((one) => one * power >= rough * 0.999) ?? 10);
  const found = [];
  for (let value = Math.ceil(low / unit) * unit; value <= high + unit * 1e-9; value += unit) found.push(Math.round(value / unit) * unit);
  return found.length > 0 ? found : [low];
}

// src/data.js
var KINDS = { f4: Float32Array, u1: Uint8Array, u2: Uint16Array, i4: Int32Array };
function unpack(packed) {
  const [[kind, text]] = Object.entries(packed);
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new KINDS[kind](bytes.buffer);
}
var unpackAll = (object) => Object.fromEntries(Object.entries(object).map(([key, value]) => [key, unpack(value)]));
var Content = class {
  #targets = /* @__PURE__ */ new Map();
  constructor(content) {
    Object.assign(this, content);
    this.label = Object.fromEntries(content.methods.map((method) => [method.name, method.label]));
  }
  /** What a node is called. */
  nodeName(id) {
    return this.nodeNames?.[id] ?? String(id);
  }
  /** What a class is called. */
  className(number2) {
    return this.classNames?.[number2] ?? `class ${number2}`;
  }
  /** What a target is called. */
  targetName(target) {
    return this.kind === "node" ? this.nodeName(target.id) : String(target.id);
  }
  /** A target with its arrays. */
  target(position) {
    if (!this.#targets.has(position)) this.#targets.set(position, this.#unpackTarget(this.targets[position]));
    return this.#targets.get(position);
  }
  #unpackTarget(raw) {
    const nodes = unpack(raw.nodes);
    const scale = (value) => value / 65535 * 2 - 1;
    const layers = raw.layers?.map((layer) => ({
      weight: unpack(layer.weight),
      present: layer.present ? unpack(layer.present) : null
    }));
    const target = {
      ...raw,
      nodes,
      x: Float64Array.from(unpack(raw.x), scale),
      y: Float64Array.from(unpack(raw.y), (value) => -scale(value)),
      hops: unpack(raw.hops),
      source: unpack(raw.source),
      destination: unpack(raw.destination),
      truth: raw.truth ? unpack(raw.truth) : null,
      scores: unpackAll(raw.scores),
      effects: Object.fromEntries(Object.entries(raw.effects).map(([name, effect]) => [name, unpackAll(effect)])),
      layers: layers ?? null,
      names: raw.names ?? Array.from(nodes, (id) => this.nodeName(id))
    };
    target.size = target.source.length;
    return target;
  }
  /** The values that a picture shows: a method's scores, or "effect": what reducing an edge does to the confidence. */
  values(target, shown, protocol) {
    return shown === EFFECT ? target.effects[protocol].pc : target.scores[shown];
  }
  /** What such values are called. */
  valuesLabel(shown, protocol) {
    return shown === EFFECT ? `ΔPC (${protocol})` : this.label[shown];
  }
};
var EFFECT = "";
function ranking(values) {
  const known = (value) => Number.isNaN(value) ? -Infinity : value;
  return Array.from(values.keys()).sort((a, b) => known(values[b]) - known(values[a]) || a - b);
}
function strengths(values) {
  let largest = 0;
  for (const value of values) if (Number.isFinite(value)) largest = Math.max(largest, Math.abs(value));
  return {
    largest,
    of: Float64Array.from(values, (value) => Number.isFinite(value) && largest > 0 ? value / largest : 0)
  };
}
function rankOf(values, position) {
  const own = values[position];
  if (Number.isNaN(own)) return values.length;
  let higher = 0;
  for (const value of values) if (value > own) higher++;
  return higher + 1;
}

// src/edge_card.js
function edgeCard(content, target, edge, tree) {
  const [from, to] = [target.source[edge], target.destination[edge]];
  return [
    h("h3", {}, `${target.names[from]} → ${target.names[to]}`),
    h("p", { class: "notes" }, notes(content, target, edge, from, to).join(" · ")),
    scoresTable(content, target, edge),
    content.protocols.length > 0 ? effectsTable(content, target, edge) : null,
    tree ? flows(target, edge, tree) : null
  ].filter(Boolean);
}
function notes(content, target, edge, from, to) {
  const found = [];
  if (from === to) found.push("self-loop");
  if (target.truth?.[edge]) found.push("true explanation");
  if (target.hops[to] !== 255) found.push(target.hops[to] === 0 ? "enters the target" : `${count(target.hops[to], "hop")} from the target`);
  return found.length ? found : ["edge"];
}
function scoresTable(content, target, edge) {
  const rows = content.methods.map(({ name, label }) => {
    const values = target.scores[name];
    const rank = rankOf(values, edge);
    return h(
      "tr",
      { "data-method": name },
      h("th", { scope: "row" }, label),
      h("td", { class: "value" }, number(values[edge])),
      h("td", { class: "rank" }, `${whole(rank)} of ${whole(target.size)}`)
    );
  });
  return h("table", {}, h("thead", {}, row("th", "method", "score", "rank")), h("tbody", {}, rows));
}
function effectsTable(content, target, edge) {
  const rows = content.protocols.map(({ name }) => {
    const effect = target.effects[name];
    return h(
      "tr",
      { "data-protocol": name },
      h("th", { scope: "row" }, name),
      h("td", { class: "pc" }, signed(effect.pc[edge])),
      h("td", { class: "ne" }, signed(effect.ne[edge])),
      h("td", { class: effect.changed[edge] ? "after changed" : "after" }, afterwards(content, target, effect, edge))
    );
  });
  const known = target.predicted !== void 0;
  const before = known ? [h("small", {}, ` now ${content.className(target.predicted)} ${number(target.confidence, 3)}`)] : [];
  return h(
    "table",
    {},
    h("caption", {}, "what reducing it does", before),
    h("thead", {}, row("th", "protocol", "ΔPC", "ΔNE", "then")),
    h("tbody", {}, rows)
  );
}
function afterwards(content, target, effect, edge) {
  const changed = Boolean(effect.changed[edge]);
  if (effect.after) return `${content.className(effect.after[edge])} ${number(effect.confidence[edge], 3)}`;
  if (target.predicted === void 0) return changed ? "another class" : "the same class";
  const own = `${content.className(target.predicted)} ${number(Math.max(0, target.confidence - effect.pc[edge]), 3)}`;
  return changed ? `not ${own}` : own;
}
function flows(target, edge, tree) {
  const own = tree.filter((step2) => step2.edge === edge);
  if (own.length === 0) return h("p", { class: "notes" }, "not in the part of the tree that is drawn");
  const terms = own.slice(0, 4).map((step2) => {
    const factors = [];
    for (let at2 = step2; at2.parent; at2 = at2.parent) factors.push(number(at2.attention));
    return factors.join(" · ");
  });
  const rest = own.length > terms.length ? [`${own.length - terms.length} more`] : [];
  const sum = own.reduce((total, step2) => total + step2.flow, 0);
  const part = tree.length < target.treeSize ? " of the part that is drawn" : "";
  return h(
    "div",
    { class: "flows" },
    h("p", {}, `${count(own.length, "time")} in the tree${part}; attention along the ways to the root:`),
    h("p", { class: "sum" }, `${[...terms, ...rest].join(" + ")} = ${number(sum)}`)
  );
}
function edgeSentence(content, target, edge, method, protocol) {
  const [from, to] = [target.names[target.source[edge]], target.names[target.destination[edge]]];
  const values = target.scores[method];
  const rank = rankOf(values, edge);
  const parts = [`Edge from ${from} to ${to}.`, `${content.label[method]} ${number(values[edge])}, rank ${rank} of ${target.size}.`];
  if (target.truth?.[edge]) parts.push("A true explanation.");
  if (protocol) {
    const effect = target.effects[protocol];
    parts.push(
      `Reducing it by ${protocol}: confidence changes by ${number(-effect.pc[edge])},`,
      `the predicted class ${effect.changed[edge] ? "changes" : "stays"}.`
    );
  }
  return parts.join(" ");
}
function row(tag, ...cells) {
  return h("tr", {}, cells.map((cell) => h(tag, { scope: "col" }, cell)));
}

// src/edge_table.js
var FIRST_ROWS = 50;
var EdgeTable = class {
  #rows = [];
  #sort = { key: null, down: true };
  #shown = FIRST_ROWS;
  #current = null;
  /** `choose(edge)` is called with the row that gets the focus, `hover(edge)` with the one under the pointer. */
  constructor({ choose, hover }) {
    this.choose = choose;
    this.head = h("thead");
    this.body = h("tbody", {
      keydown: (event) => this.#keys(event),
      focusin: (event) => this.#focused(event),
      pointerover: (event) => hover(edgeOf(event.target), event),
      pointerleave: (event) => hover(-1, event),
      click: (event) => edgeOf(event.target) >= 0 && choose(edgeOf(event.target))
    });
    this.caption = h("caption", {});
    this.more = h("button", { type: "button", class: "more", click: () => this.#showMore() });
    this.scroller = h(
      "div",
      { class: "scroller", role: "region", "aria-label": "Edges", tabindex: 0 },
      h("table", { class: "edges" }, this.caption, this.head, this.body),
      this.more
    );
    this.element = h("div", { class: "edge-table" }, this.scroller);
  }
  /** Show the visible edges of a target; without another wish they are sorted by what the picture shows. */
  show(content, target, visible, method, protocol) {
    this.#current = { content, target, visible, method, protocol };
    this.columns = columns(content, target, method, protocol);
    if (!this.columns.some((column) => column.key === this.#sort.key)) this.#sort = { key: null, down: true };
    this.#shown = FIRST_ROWS;
    this.scroller.scrollTop = 0;
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
  }
  #heading(column, isSorted) {
    const direction = this.#sort.down ? "descending" : "ascending";
    const press = () => {
      this.#sort = { key: column.key, down: isSorted ? !this.#sort.down : column.down };
      this.#draw();
      this.head.querySelector(`[data-key="${CSS.escape(column.key)}"]`).focus();
    };
    return h(
      "th",
      { scope: "col", "aria-sort": isSorted ? direction : null, class: column.class },
      h(
        "button",
        { type: "button", "data-key": column.key, title: column.hint, click: press },
        column.title,
        h("span", { class: "arrow", "aria-hidden": "true" }, isSorted ? this.#sort.down ? "▼" : "▲" : "")
      )
    );
  }
  #grow(until) {
    const { target } = this.#current;
    for (const edge of this.order.slice(this.#rows.length, until)) {
      const cells = this.columns.map((column, place2) => {
        const cell = h(
          place2 === 0 ? "th" : "td",
          { class: column.class, scope: place2 === 0 ? "row" : null },
          column.text(edge)
        );
        if (column.bar) cell.style.setProperty("--bar", `${Math.round(column.bar(edge) * 100)}%`);
        return cell;
      });
      const row2 = h("tr", { "data-edge": edge, tabindex: this.#rows.length === 0 ? 0 : -1 }, cells);
      if (target.truth?.[edge]) row2.classList.add("true");
      this.#rows.push(row2);
      this.body.append(row2);
    }
    const left = this.order.length - this.#rows.length;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show more (${whole(left)} left)`;
    this.caption.textContent = `${whole(this.order.length)} of ${whole(target.wholeEdges)} edges`;
  }
  #showMore() {
    const first = this.#rows.length;
    this.#grow(this.#shown = first + 200);
    this.#rows[first]?.focus();
  }
  /** Mark the chosen edge's row, and bring it into view. */
  mark(edge, scroll) {
    this.body.querySelector(".chosen")?.classList.remove("chosen");
    if (edge < 0) return;
    const place2 = this.order.indexOf(edge);
    if (place2 < 0) return;
    if (place2 >= this.#rows.length) this.#grow(this.#shown = place2 + 20);
    const row2 = this.#rows[place2];
    row2.classList.add("chosen");
    this.#rove(row2);
    if (scroll) {
      const [top, bottom] = [row2.offsetTop - this.head.offsetHeight - 30, row2.offsetTop + row2.offsetHeight];
      if (this.scroller.scrollTop > top) this.scroller.scrollTop = top;
      else if (this.scroller.scrollTop + this.scroller.clientHeight < bottom) {
        this.scroller.scrollTop = bottom - this.scroller.clientHeight;
      }
    }
  }
  /** One row at a time is in the order of the Tab key. */
  #rove(row2) {
    for (const other of this.body.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    row2.tabIndex = 0;
  }
  #focused(event) {
    const edge = edgeOf(event.target);
    if (edge >= 0) this.choose(edge);
  }
  #keys(event) {
    const place2 = this.#rows.indexOf(event.target.closest("tr"));
    const to = { ArrowDown: place2 + 1, ArrowUp: place2 - 1, Home: 0, End: this.order.length - 1 }[event.key];
    if (to === void 0 || to < 0 || to >= this.order.length) return;
    event.preventDefault();
    if (to >= this.#rows.length) this.#grow(this.#shown = to + 20);
    this.#rove(this.#rows[to]);
    this.#rows[to].focus();
  }
};
function columns(content, target, method, protocol) {
  const { names, source, destination } = target;
  const list = [{
    key: "edge",
    title: "edge",
    class: "name",
    down: false,
    hint: "source → destination",
    text: (edge) => `${names[source[edge]]} → ${names[destination[edge]]}`,
    order: (edge) => target.nodes[source[edge]] * 2 ** 26 + target.nodes[destination[edge]]
  }];
  if (target.truth) {
    list.push({
      key: "truth",
      title: "true",
      class: "flag",
      down: true,
      hint: "edges that truly explain the target",
      text: (edge) => target.truth[edge] ? "true" : "",
      order: (edge) => target.truth[edge]
    });
  }
  const score = ({ name, label }) => {
    const values = target.scores[name];
    const bars = name === method ? strengths(values).of : null;
    return {
      key: `score ${name}`,
      title: label,
      class: bars ? "number barred" : "number",
      down: true,
      hint: `score by ${label}`,
      text: (edge) => number(values[edge]),
      order: (edge) => values[edge],
      bar: bars && ((edge) => Math.max(0, bars[edge]))
    };
  };
  list.push(...content.methods.filter(({ name }) => name === method).map(score));
  const effect = target.effects[protocol];
  if (effect) {
    list.push(
      {
        key: "pc",
        title: "ΔPC",
        class: "number",
        down: true,
        hint: "decline of the predicted class's probability",
        text: (edge) => signed(effect.pc[edge]),
        order: (edge) => effect.pc[edge]
      },
      {
        key: "ne",
        title: "ΔNE",
        class: "number",
        down: true,
        hint: "change of negative entropy",
        text: (edge) => signed(effect.ne[edge]),
        order: (edge) => effect.ne[edge]
      },
      {
        key: "after",
        title: "then",
        class: "after",
        down: true,
        hint: "prediction after the reduction; changed classes first",
        text: (edge) => afterwards(content, target, effect, edge),
        order: (edge) => effect.changed[edge] * 2 + effect.pc[edge]
      }
    );
  }
  list.push(...content.methods.filter(({ name }) => name !== method).map(score));
  return list;
}
function compare(a, b) {
  const [x, y] = [Number.isNaN(a) ? -Infinity : a, Number.isNaN(b) ? -Infinity : b];
  return x === y ? 0 : x < y ? -1 : 1;
}
function edgeOf(element) {
  return Number(element.closest("tr[data-edge]")?.dataset.edge ?? -1);
}

// src/export.js
function downloadSvg(pictures2, name) {
  const boxes = pictures2.map((picture) => picture.box);
  const width = boxes.reduce((sum, box) => sum + box.width, 0);
  const height = Math.max(...boxes.map((box) => box.height));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of [["viewBox", `0 0 ${width} ${height}`], ["width", width], ["height", height]]) svg.setAttribute(key, value);
  let left = 0;
  pictures2.forEach((picture, place2) => {
    const copy = picture.svg.cloneNode(true);
    for (const [key, value] of [["x", left], ["width", boxes[place2].width], ["height", boxes[place2].height]]) copy.setAttribute(key, value);
    left += boxes[place2].width;
    svg.append(copy);
  });
  const text = new XMLSerializer().serializeToString(svg);
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const link = h("a", { href: address, download: `${name}.svg` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1e3);
}

// src/shapes.js
var SAMPLES = 8;
function arrow(from, to, bend, width, head) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const control = { x: (from.x + to.x) / 2 + 2 * bend * dy, y: (from.y + to.y) / 2 - 2 * bend * dx };
  const start = towards(from, control, from.r);
  const tip = towards(to, control, to.r + 1);
  const base = towards(tip, control, Math.min(head, length(start, tip) * 0.7));
  const mid = { x: control.x, y: control.y };
  const half = width / 2;
  const [atStart, atMid, atBase] = [normal(start, mid), normal(start, base), normal(mid, base)];
  const side = Math.max(head * 0.45, half * 1.6);
  const path = [
    `M${at(start, atStart, half)}Q${at(mid, atMid, half)} ${at(base, atBase, half)}`,
    `L${at(base, atBase, side)}L${at(tip, atBase, 0)}L${at(base, atBase, -side)}L${at(base, atBase, -half)}`,
    `Q${at(mid, atMid, -half)} ${at(start, atStart, -half)}Z`
  ].join("");
  const line = `M${at(start, atStart, 0)}Q${at(mid, atMid, 0)} ${at(tip, atBase, 0)}`;
  const points = [];
  for (let sample = 0; sample <= SAMPLES; sample++) {
    const t = sample / SAMPLES;
    const [a, b, c] = [(1 - t) ** 2, 2 * t * (1 - t), t ** 2];
    points.push(a * start.x + b * mid.x + c * tip.x, a * start.y + b * mid.y + c * tip.y);
  }
  return { path, line, points };
}
function loop(disc, angle, width, head) {
  const size = disc.r * 0.85;
  const away = disc.r + size * 0.55;
  const centre = { x: disc.x + away * Math.cos(angle), y: disc.y + away * Math.sin(angle) };
  const open = Math.acos(Math.max(-1, Math.min(1, (away ** 2 + size ** 2 - (disc.r + 1) ** 2) / (2 * away * size))));
  const [first, last] = [angle + Math.PI + open, angle + 3 * Math.PI - open];
  const reach = Math.min(head / size, (last - first) * 0.5);
  const [half, neck] = [width / 2, last - reach];
  const side = Math.max(head * 0.45, half * 1.6);
  const on = (turn, radius) => `${round(centre.x + radius * Math.cos(turn))} ${round(centre.y + radius * Math.sin(turn))}`;
  const [outer, inner] = [size + half, Math.max(size - half, 0.1)];
  const large = neck - first > Math.PI ? 1 : 0;
  const path = [
    `M${on(first, outer)}A${round(outer)} ${round(outer)} 0 ${large} 1 ${on(neck, outer)}`,
    `L${on(neck, size + side)}L${on(last, size)}L${on(neck, Math.max(size - side, 0))}L${on(neck, inner)}`,
    `A${round(inner)} ${round(inner)} 0 ${large} 0 ${on(first, inner)}Z`
  ].join("");
  const line = `M${on(first, size)}A${round(size)} ${round(size)} 0 1 1 ${on(last, size)}`;
  const points = [];
  for (let sample = 0; sample <= SAMPLES; sample++) {
    const turn = first + (last - first) * sample / SAMPLES;
    points.push(centre.x + size * Math.cos(turn), centre.y + size * Math.sin(turn));
  }
  return { path, line, points };
}
function step(from, to) {
  const line = `M${round(from.x)} ${round(from.y)}L${round(to.x)} ${round(to.y)}`;
  return { path: line, line, points: [from.x, from.y, to.x, to.y] };
}
function distance(points, x, y) {
  let nearest = Infinity;
  for (let place2 = 0; place2 + 3 < points.length; place2 += 2) {
    const [ax, ay] = [points[place2], points[place2 + 1]];
    const [dx, dy] = [points[place2 + 2] - ax, points[place2 + 3] - ay];
    const along = Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1)));
    nearest = Math.min(nearest, Math.hypot(x - ax - along * dx, y - ay - along * dy));
  }
  return nearest;
}
function gaps(discs, source, destination) {
  const angles = discs.map(() => []);
  for (let edge = 0; edge < source.length; edge++) {
    const [from, to] = [discs[source[edge]], discs[destination[edge]]];
    if (from === to) continue;
    const angle = Math.atan2(to.y - from.y, to.x - from.x);
    angles[source[edge]].push(angle);
    angles[destination[edge]].push(angle > 0 ? angle - Math.PI : angle + Math.PI);
  }
  return angles.map((found) => {
    if (found.length === 0) return -Math.PI / 2;
    found.sort((a, b) => a - b);
    let [widest, middle] = [-1, 0];
    found.forEach((angle, place2) => {
      const gap = (found[place2 + 1] ?? found[0] + 2 * Math.PI) - angle;
      if (gap > widest + 1e-9) [widest, middle] = [gap, angle + gap / 2];
    });
    return middle;
  });
}
var length = (a, b) => Math.hypot(b.x - a.x, b.y - a.y);
var round = (value) => Math.round(value * 100) / 100;
var at = (point, direction, shift) => `${round(point.x + direction.x * shift)} ${round(point.y + direction.y * shift)}`;
function towards(from, to, way) {
  const whole2 = length(from, to) || 1;
  return { x: from.x + (to.x - from.x) * way / whole2, y: from.y + (to.y - from.y) * way / whole2 };
}
function normal(from, to) {
  const whole2 = length(from, to) || 1;
  return { x: (to.y - from.y) / whole2, y: (from.x - to.x) / whole2 };
}

// src/neighbourhood.js
var NAMED = 80;
function neighbourhoodScene(target, values, visible, box, colors) {
  const discs = place(target, box);
  const { of: strength, largest } = strengths(values);
  const turns = gaps(discs, target.source, target.destination);
  const key = (from, to) => from * 65536 + to;
  const seen = new Set(Array.from(target.source, (from, edge) => key(from, target.destination[edge])));
  const times = /* @__PURE__ */ new Map();
  const links = [];
  for (const edge of ranking(strength.map(Math.abs)).reverse()) {
    if (!visible[edge]) continue;
    const [from, to] = [target.source[edge], target.destination[edge]];
    const force = Math.abs(strength[edge]);
    const r = discs[to].small;
    const width = Math.max(0.5, r * 0.06) + Math.max(2.6, r * 0.42) * force;
    const head = Math.max(3, r * 0.5) + Math.max(4, r * 0.45) * force;
    const before = times.get(key(from, to)) ?? 0;
    times.set(key(from, to), before + 1);
    const bend = (seen.has(key(to, from)) ? 0.09 : 0) + 0.09 * before;
    const shape = from === to ? loop(discs[from], turns[from], width, head) : arrow(discs[from], discs[to], bend, width, head);
    links.push({ edge, ...shape, width, ends: [from, to], fill: colorOf(colors, strength[edge]) });
  }
  const touched = new Set(links.flatMap((link) => link.ends));
  const isTrue = new Set(links.filter((link) => target.truth?.[link.edge]).flatMap((link) => link.ends));
  discs.forEach((disc, node) => {
    disc.isTrue = isTrue.has(node);
    disc.faded = !touched.has(node) && !disc.isTarget;
  });
  const negative = values.some((value) => value < 0);
  return { discs, links, truth: (link) => Boolean(target.truth?.[link.edge]), scale: { largest, negative } };
}
function place(target, box) {
  const range = (values) => [Math.min(...values), Math.max(...values)];
  const [[left, right], [top, bottom]] = [range(target.x), range(target.y)];
  const margin = 46;
  const fit = Math.min((box.width - 2 * margin) / (right - left || 1e-9), (box.height - 2 * margin - 30) / (bottom - top || 1e-9));
  const scale = Math.min(fit, 150 / target.spacing);
  const small = Math.max(2.5, Math.min(17, 0.34 * target.spacing * scale));
  const [cx, cy] = [(left + right) / 2, (top + bottom) / 2];
  const fewNodes = target.names.length <= NAMED;
  return Array.from(target.nodes, (id, node) => {
    const isTarget = node === target.target;
    return {
      x: box.width / 2 + (target.x[node] - cx) * scale,
      y: box.height / 2 - 8 + (target.y[node] - cy) * scale,
      small,
      r: isTarget ? Math.max(small * 1.3, 7) : small,
      isTarget,
      name: fewNodes || isTarget ? short(target.names[node], 14) : ""
    };
  });
}

// src/picture.js
var NEAR = 14;
var pictures = 0;
var Picture = class {
  #scene = { links: [], discs: [] };
  #colors;
  #release = () => {
  };
  /** `hover(edge, event)` and `choose(edge, event)` are told the edge near the pointer, -1 for none. */
  constructor(viewport, { hover, choose }) {
    this.viewport = viewport;
    this.id = `attree-picture-${pictures++}`;
    this.svg = s("svg", { role: "img", xmlns: "http://www.w3.org/2000/svg" });
    this.element = h("div", { class: "picture" }, this.svg);
    let pressed = null;
    this.svg.addEventListener("pointermove", (event) => {
      if (event.buttons === 0) hover(this.#nearest(event), event);
    });
    this.svg.addEventListener("pointerleave", (event) => hover(-1, event));
    this.svg.addEventListener("pointerdown", (event) => pressed = [event.clientX, event.clientY]);
    this.svg.addEventListener("click", (event) => {
      const moved = pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) > 5;
      if (!moved) choose(this.#nearest(event), event);
    });
  }
  /** Width and height of the picture on screen. */
  get box() {
    return { width: Math.max(this.element.clientWidth, 220), height: Math.max(this.element.clientHeight, 240) };
  }
  /** Draw a scene under a title; `label` is what a screen reader says. */
  draw(scene, colors, title, label) {
    this.#release();
    this.#scene = scene;
    this.#colors = colors;
    const { width, height } = this.box;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("aria-label", label);
    this.overlay = s("g", { "pointer-events": "none" });
    const group = s("g", {}, this.#halos(), this.#links(), this.overlay, this.#discs(), this.#marks(), this.#levels());
    this.svg.replaceChildren(
      s("rect", { width: "100%", height: "100%", fill: colors.paper }),
      group,
      s("text", { x: 12, y: 22, fill: colors.ink, ...font(14, 600) }, title),
      this.#legend(height)
    );
    this.#release = this.viewport.attach(this.svg, group);
  }
  #halos() {
    const lines = this.#scene.links.filter(this.#scene.truth);
    const width = Math.max(5, ...lines.map((link) => link.width + 5));
    return s("path", {
      d: lines.map((link) => link.line).join(""),
      fill: "none",
      stroke: this.#colors.truth,
      "stroke-opacity": 0.42,
      "stroke-width": width,
      "stroke-linecap": "round"
    });
  }
  #links() {
    return s("g", {}, this.#scene.links.map((link) => link.fill ? s("path", { d: link.path, fill: link.fill }) : s("path", {
      d: link.path,
      fill: "none",
      stroke: link.stroke,
      "stroke-width": link.width,
      "stroke-dasharray": link.isLoop ? "5 3" : null
    })));
  }
  #discs() {
    const colors = this.#colors;
    const group = s("g", { "pointer-events": "none" });
    for (const disc of this.#scene.discs) {
      group.append(s("circle", {
        cx: disc.x,
        cy: disc.y,
        r: disc.r,
        fill: disc.isTarget ? colors.target : colors.node,
        stroke: disc.isTrue ? colors.truth : disc.faded ? colors.faint : colors.rim,
        "stroke-width": disc.isTrue ? Math.min(2.5, disc.r / 3) : Math.min(1.2, disc.r / 4)
      }));
      if (disc.name) group.append(this.#name(disc));
    }
    return group;
  }
  /** A node's name: on it where it fits, else below. */
  #name(disc) {
    if (disc.upright) return this.#upright(disc);
    const fits = disc.name.length <= 5;
    const size = fits ? Math.min(disc.r, 2.6 * disc.r / Math.max(disc.name.length, 2)) : Math.min(10, (disc.small ?? disc.r) * 0.8);
    const fill2 = fits && disc.isTarget ? this.#colors.onTarget : disc.faded ? this.#colors.muted : this.#colors.ink;
    return s("text", {
      x: disc.x,
      y: fits ? disc.y + size * 0.36 : disc.y + disc.r + size + 1,
      fill: fill2,
      "text-anchor": "middle",
      "paint-order": "stroke",
      stroke: fits ? null : this.#colors.paper,
      "stroke-width": fits ? null : size / 4,
      ...font(size)
    }, disc.name);
  }
  /** A name that runs down from its node: where nodes stand close together. */
  #upright(disc) {
    const size = Math.min(10, disc.upright);
    const place2 = `translate(${disc.x - size * 0.34} ${disc.y + disc.r + 3}) rotate(90)`;
    return s("text", { transform: place2, fill: this.#colors.muted, ...font(size) }, disc.name);
  }
  #marks() {
    const colors = this.#colors;
    return s("g", { "pointer-events": "none" }, (this.#scene.marks ?? []).flatMap((mark) => [
      s("circle", { cx: mark.x, cy: mark.y, r: mark.r, fill: colors.paper, stroke: colors.truth, "stroke-width": mark.r / 7 }),
      s("text", {
        x: mark.x,
        y: mark.y + mark.r * 0.32,
        fill: colors.ink,
        "text-anchor": "middle",
        ...font(mark.r * 0.95)
      }, mark.text)
    ]));
  }
  #levels() {
    return s("g", {}, (this.#scene.levels ?? []).map((level) => s("text", { x: level.x, y: level.y, fill: this.#colors.muted, ...font(12) }, level.text)));
  }
  #legend(height) {
    const { largest, negative } = this.#scene.scale;
    const colors = this.#colors;
    const [x, y, width] = [12, height - 22, negative ? 180 : 120];
    const stops = Array.from({ length: 9 }, (_, place2) => {
      const strength = negative ? place2 / 4 - 1 : place2 / 8;
      return s("stop", { offset: place2 / 8, "stop-color": colorOf(colors, strength) });
    });
    const text = (place2, anchor, content) => s("text", { x: place2, y: y + 19, fill: colors.muted, "text-anchor": anchor, ...font(11) }, content);
    const ends = negative ? [-largest, 0, largest] : [0, largest];
    const anchors = negative ? ["start", "middle", "end"] : ["start", "end"];
    const parts = [
      s("linearGradient", { id: this.id }, stops),
      s("rect", { x, y, width, height: 7, rx: 2, fill: `url(#${this.id})` }),
      ...ends.map((end, place2) => text(x + width * place2 / (ends.length - 1), anchors[place2], number(end)))
    ];
    if (this.#scene.links.some(this.#scene.truth)) {
      const start = x + width + 22;
      parts.push(
        s("rect", { x: start, y, width: 26, height: 7, rx: 3, fill: colors.truth, "fill-opacity": 0.5 }),
        text(start, "start", "true explanation")
      );
    }
    return s("g", { "pointer-events": "none" }, parts);
  }
  /** Show one edge, wherever it is drawn; -1 shows none. */
  highlight(edge) {
    const chosen = edge < 0 ? [] : this.#scene.links.filter((link) => link.edge === edge);
    const rings = new Set(chosen.flatMap((link) => link.ends));
    this.overlay?.replaceChildren(
      ...chosen.flatMap((link) => [
        s("path", {
          d: link.line,
          fill: "none",
          stroke: this.#colors.chosen,
          "stroke-width": link.width + 4.5,
          "stroke-linecap": "round",
          "stroke-opacity": 0.85
        }),
        s("path", link.fill ? { d: link.path, fill: link.fill, stroke: this.#colors.paper, "stroke-width": 0.8 } : { d: link.line, stroke: link.stroke, "stroke-width": link.width + 0.8, fill: "none" })
      ]),
      ...Array.from(rings, (node) => this.#scene.discs[node]).map((disc) => s("circle", { cx: disc.x, cy: disc.y, r: disc.r + 2.5, fill: this.#colors.chosen }))
    );
  }
  /** Whether an edge is drawn. */
  shows(edge) {
    return this.#scene.links.some((link) => link.edge === edge);
  }
  #nearest(event) {
    const { x, y, scale } = this.viewport;
    const frame = this.svg.getBoundingClientRect();
    const [px, py] = [(event.clientX - frame.left - x) / scale, (event.clientY - frame.top - y) / scale];
    let [best, found] = [NEAR / scale, -1];
    for (const link of this.#scene.links) {
      const away = distance(link.points, px, py) - link.width / 2;
      if (away <= best) [best, found] = [away, link.edge];
    }
    return found;
  }
};
var font = (size, weight = 400) => ({
  "font-size": Math.round(size * 10) / 10,
  "font-weight": weight,
  "font-family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
});

// src/target_list.js
var MOST = 400;
var lists = 0;
var TargetList = class {
  #found = [];
  #current = 0;
  constructor(content, choose) {
    this.content = content;
    this.choose = choose;
    this.id = `attree-targets-${lists++}`;
    const noun = content.kind;
    this.search = h("input", {
      type: "search",
      placeholder: `Find a ${noun}`,
      "aria-label": `Find a ${noun} by number, name or class`,
      "aria-controls": this.id,
      input: () => this.#draw(),
      keydown: (event) => this.#keys(event)
    });
    this.list = h("div", {
      id: this.id,
      class: "targets",
      role: "listbox",
      tabindex: 0,
      "aria-label": `Explained ${noun}s`,
      keydown: (event) => this.#keys(event),
      click: (event) => {
        const option = event.target.closest("[data-target]");
        if (option) choose(Number(option.dataset.target));
      }
    });
    this.note = h("p", { class: "notes", role: "status" });
    this.kept = () => true;
    this.element = h("div", { class: "target-list" }, this.search, this.#filter(), this.list, this.note);
    this.#draw();
  }
  #filter() {
    const { targets } = this.content;
    const filters = { all: ["all", () => true] };
    const wrong = (target) => target.true !== void 0 && target.predicted !== target.true;
    if (targets.some((target) => target.predicted !== void 0 && wrong(target))) {
      filters.wrong = ["wrong predictions", wrong];
      filters.right = ["right predictions", (target) => !wrong(target)];
    }
    if (targets.some((target) => target.truth)) filters.truth = ["with true edges", (target) => Boolean(target.truth)];
    if (Object.keys(filters).length === 1) return "";
    const options = Object.entries(filters).map(([key, [text]]) => [key, text]);
    return select("Show", options, "all", (key) => {
      this.kept = filters[key][1];
      this.#draw();
    }).element;
  }
  /** Every word that a target can be found by. */
  #words(target) {
    const { content } = this;
    const words = [String(target.id), content.targetName(target)];
    for (const own of [target.predicted, target.true]) if (own !== void 0) words.push(content.className(own));
    return words.join(" ").toLowerCase();
  }
  #draw() {
    const asked = this.search.value.trim().toLowerCase();
    const { content } = this;
    const exact = (position) => content.targetName(content.targets[position]).toLowerCase() === asked;
    this.#found = content.targets.map((target, position) => [target, position]).filter(([target]) => this.kept(target) && this.#words(target).includes(asked)).map(([, position]) => position);
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
      role: "option",
      id: `${this.id}-${position}`,
      "data-target": position,
      "aria-selected": "false"
    }, h("span", { class: "name" }, content.targetName(target)));
    if (target.predicted !== void 0) {
      const isWrong = target.true !== void 0 && target.true !== target.predicted;
      option.append(
        h("span", { class: "class" }, content.className(target.predicted)),
        h("span", { class: isWrong ? "mark wrong" : "mark" }, isWrong ? "wrong" : number(Math.round(target.confidence * 100) / 100))
      );
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
  neighbour(step2) {
    const among = this.#found.length > 1 ? this.#found : [...this.content.targets.keys()];
    const place2 = among.indexOf(this.#current);
    return place2 < 0 ? among[0] : among[((place2 + step2) % among.length + among.length) % among.length];
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
};

// src/tree.js
var MOST_NODES = 400;
function growTree(target, most = MOST_NODES) {
  const entering = Array.from(target.nodes, () => []);
  for (let edge = 0; edge < target.size; edge++) entering[target.destination[edge]].push(edge);
  const height = target.layers.length;
  let level = [{ node: target.target, depth: 0, parent: null, edge: -1, attention: 1, flow: 1 }];
  const grown = [...level];
  for (let depth = 1; depth <= height; depth++) {
    const layer = target.layers[height - depth];
    const next = [];
    for (const parent of level) {
      for (const edge of entering[parent.node]) {
        if (layer.present && !layer.present[edge]) continue;
        const attention = layer.weight[edge];
        next.push({ node: target.source[edge], depth, parent, edge, attention, flow: parent.flow * attention });
      }
    }
    level = next.sort((a, b) => b.flow - a.flow).slice(0, most);
    grown.push(...level);
  }
  return grown.sort((a, b) => b.flow - a.flow || a.depth - b.depth).slice(0, most).sort((a, b) => a.depth - b.depth);
}
function occurrences(tree) {
  const times = /* @__PURE__ */ new Map();
  for (const { edge } of tree) if (edge >= 0) times.set(edge, (times.get(edge) ?? 0) + 1);
  return times;
}
function treeScene(target, tree, box, colors) {
  const height = target.layers.length;
  const across = spread(tree);
  const leaves = Math.max(...across) + 1;
  const [left, top] = [76, 56];
  const gap = (box.width - left - 30) / leaves;
  const rise = (box.height - top - 100) / height;
  const gaps2 = levelGaps(tree, across, height).map((least) => least * gap);
  const discs = tree.map((own, place2) => ({
    x: left + (across[place2] + 0.5) * gap,
    y: top + own.depth * rise,
    r: own.depth === 0 ? 13 : Math.max(1.6, Math.min(12, 0.42 * gaps2[own.depth])),
    isTarget: own.node === target.target,
    name: short(target.names[own.node], 10),
    // The lowest names run downwards where they would be too small on their nodes.
    upright: own.depth === height && gaps2[height] < 22 ? gaps2[height] : 0
  }));
  const placeOf = new Map(tree.map((own, place2) => [own, place2]));
  const times = occurrences(tree);
  const links = tree.slice(1).map((own, before) => {
    const [from, to] = [before + 1, placeOf.get(own.parent)];
    const thick = Math.min(1, discs[from].r / 6);
    return {
      edge: own.edge,
      ...step(discs[from], discs[to]),
      ends: [from, to],
      width: Math.max(0.5, thick * (0.9 + 4 * own.attention)),
      stroke: colorOf(colors, own.attention),
      strength: own.attention,
      isLoop: target.source[own.edge] === target.destination[own.edge]
    };
  });
  links.sort((a, b) => a.strength - b.strength);
  const marks = links.filter((link) => times.get(link.edge) > 1).map((link) => {
    const [x1, y1, x2, y2] = link.points;
    const r = Math.min(7.5, discs[link.ends[0]].r * 0.8);
    return { x: x1 + (x2 - x1) * 0.3, y: y1 + (y2 - y1) * 0.3, r, text: `×${times.get(link.edge)}` };
  });
  const levels = target.layers.map((_, layer) => ({ x: 12, y: top + (height - layer - 0.5) * rise, text: `layer ${layer + 1}` }));
  return {
    discs,
    links,
    marks,
    levels,
    truth: (link) => Boolean(target.truth?.[link.edge]),
    scale: { largest: 1, negative: false }
  };
}
function levelGaps(tree, across, height) {
  const places = Array.from({ length: height + 1 }, () => []);
  tree.forEach((own, place2) => places[own.depth].push(across[place2]));
  return places.map((level) => {
    level.sort((a, b) => a - b);
    return Math.min(99, ...level.slice(1).map((place2, before) => place2 - level[before]));
  });
}
function spread(tree) {
  const children = new Map(tree.map((own) => [own, []]));
  for (const own of tree) if (own.parent) children.get(own.parent).push(own);
  const place2 = /* @__PURE__ */ new Map();
  let leaves = 0;
  const visit = (own) => {
    const below = children.get(own);
    below.forEach(visit);
    place2.set(own, below.length === 0 ? leaves++ : (place2.get(below[0]) + place2.get(below.at(-1))) / 2);
  };
  visit(tree[0]);
  return tree.map((own) => place2.get(own));
}

// src/viewport.js
var MOST2 = 40;
var Viewport = class {
  #views = [];
  constructor() {
    this.scale = 1;
    this.x = 0;
    this.y = 0;
  }
  /** Move `group` with this viewport; gestures on `svg` change it. Call the result to let go. */
  attach(svg, group, moved = () => {
  }) {
    const view = { svg, apply: () => {
      group.setAttribute("transform", `translate(${this.x} ${this.y}) scale(${this.scale})`);
      moved();
    } };
    this.#views.push(view);
    view.apply();
    this.#listen(svg);
    return () => this.#views.splice(this.#views.indexOf(view), 1);
  }
  /** Everything in view again. */
  fit() {
    [this.scale, this.x, this.y] = [1, 0, 0];
    this.#apply();
  }
  /** Zoom by a factor about a point of the picture, by default its middle. */
  zoom(factor, x, y) {
    const box = this.#views[0]?.svg.viewBox.baseVal;
    if (!box) return;
    const [px, py] = [x ?? box.width / 2, y ?? box.height / 2];
    const scale = Math.min(MOST2, Math.max(0.5, this.scale * factor));
    this.x = px - (px - this.x) * scale / this.scale;
    this.y = py - (py - this.y) * scale / this.scale;
    this.scale = scale;
    this.#apply();
  }
  #apply() {
    for (const view of this.#views) view.apply();
  }
  #listen(svg) {
    const held = /* @__PURE__ */ new Map();
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * 4e-3), event.offsetX, event.offsetY);
    }, { passive: false });
    svg.addEventListener("pointerdown", (event) => held.set(event.pointerId, event));
    svg.addEventListener("pointermove", (event) => {
      const before = held.get(event.pointerId);
      if (!before) return;
      const others = [...held.values()].filter((other) => other.pointerId !== event.pointerId);
      if (others.length > 0) {
        const away = (point) => Math.hypot(point.offsetX - others[0].offsetX, point.offsetY - others[0].offsetY) || 1;
        this.zoom(
          away(event) / away(before),
          (event.offsetX + others[0].offsetX) / 2,
          (event.offsetY + others[0].offsetY) / 2
        );
      } else {
        svg.setPointerCapture(event.pointerId);
        this.x += event.offsetX - before.offsetX;
        this.y += event.offsetY - before.offsetY;
        this.#apply();
      }
      held.set(event.pointerId, event);
    });
    for (const end of ["pointerup", "pointercancel", "pointerleave"]) {
      svg.addEventListener(end, (event) => held.delete(event.pointerId));
    }
  }
};

// src/explorer.js
var AT_FIRST = 300;
var NONE = "nothing";
var Explorer = class {
  #visible = new Uint8Array(0);
  #tree = null;
  #hovered = -1;
  /** `changed(state)` is told of everything that the reader chose, to keep it in the address. */
  constructor(content, colors, state, changed) {
    this.content = content;
    this.colors = colors;
    this.changed = changed;
    this.state = {
      target: 0,
      method: content.methods[0].name,
      beside: NONE,
      protocol: content.protocols[0]?.name ?? "",
      view: "graph",
      strongest: AT_FIRST,
      edge: -1,
      ...state
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
      select("Beside it", [[NONE, "nothing"], ["scores", methods], ...effect], state.beside, (beside) => this.set({ beside }))
    ];
    this.besideControl = controls[1].control;
    if (content.protocols.length > 0) {
      const options = content.protocols.map(({ name }) => [name, name]);
      const protocol = select("Protocol", options, state.protocol, (chosen) => this.set({ protocol: chosen }));
      protocol.control.title = "What reducing an edge means";
      controls.push(protocol);
    }
    this.views = {};
    const view = (name, text) => this.views[name] = h("button", { type: "button", click: () => this.set({ view: name }) }, text);
    const switcher = h(
      "div",
      { class: "switch", role: "group", "aria-label": "View" },
      view("graph", content.kind === "node" ? "Neighbourhood" : "Graph"),
      content.targets.some((target) => target.layers) ? view("tree", "Computation tree") : null
    );
    this.filter = h("input", { type: "range", min: 0, max: 1e3, step: 1, input: () => this.#filtered() });
    this.filterText = h("output", {});
    this.stage = h("div", {
      class: "stage",
      tabindex: 0,
      role: "group",
      "aria-roledescription": "picture",
      "aria-label": "Picture. Arrow keys go from edge to edge by score, Page keys to other targets, plus and minus zoom, 0 fits.",
      keydown: (event) => this.#keys(event),
      blur: () => this.#hover(-1, null)
    }, this.pictures[0].element, this.pictures[1].element);
    const tool = (text, label, click) => h("button", { type: "button", "aria-label": label, title: label, click }, text);
    return h(
      "section",
      { class: "explorer", "aria-label": "Explorer" },
      h("div", { class: "side" }, this.list.element),
      h(
        "div",
        { class: "middle" },
        h(
          "div",
          { class: "heading" },
          tool("‹", "Previous target", () => this.set({ target: this.list.neighbour(-1) })),
          tool("›", "Next target", () => this.set({ target: this.list.neighbour(1) })),
          h("div", {}, this.heading, this.about)
        ),
        h(
          "div",
          { class: "controls" },
          switcher,
          controls.map((control) => control.element),
          h("label", { class: "field filter" }, h("span", {}, "Strongest edges "), this.filterText, this.filter)
        ),
        this.stage,
        h(
          "div",
          { class: "tools" },
          tool("+", "Zoom in", () => this.viewport.zoom(1.4)),
          tool("−", "Zoom out", () => this.viewport.zoom(1 / 1.4)),
          tool("Fit", "Fit the picture", () => this.viewport.fit()),
          tool("Save SVG", "Save the picture as SVG", () => this.#save()),
          this.note
        )
      ),
      h("div", { class: "wide" }, this.table.element, this.card),
      this.tooltip,
      this.live
    );
  }
  /** Look at something else. */
  set(changes) {
    const isOther = changes.target !== void 0 && changes.target !== this.state.target;
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
    if (target.predicted !== void 0) {
      parts.push(`predicted ${content.className(target.predicted)} (${number(target.confidence)})`);
    }
    if (target.true !== void 0) {
      const wrong = target.predicted !== void 0 && target.predicted !== target.true;
      parts.push(wrong ? h("strong", { class: "wrong" }, `wrong: it is ${content.className(target.true)}`) : `truly ${content.className(target.true)}`);
    }
    parts.push(`${count(target.wholeNodes, "node")}, ${count(target.wholeEdges, "edge")} in its neighbourhood`);
    return parts.flatMap((part, place2) => place2 > 0 ? [" · ", part] : [part]);
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
    const notes2 = target.leftOut ? [target.leftOut] : [];
    panels.forEach((shown, place2) => {
      const picture = this.pictures[place2];
      if (this.#tree) {
        const part = this.#tree.length < target.treeSize;
        if (part) notes2.push(`the ${whole(this.#tree.length)} tree nodes with the most attention to the root, of ${whole(target.treeSize)}`);
        const title = "attention (×n: an edge that occurs n times; dashed: a self-loop)";
        picture.draw(
          treeScene(target, this.#tree, picture.box, colors),
          colors,
          title,
          `Computation tree of ${name}: ${count(this.#tree.length, "node")} drawn${part ? `, of at most ${MOST_NODES}` : ""}`
        );
      } else {
        const values = content.values(target, shown, state.protocol);
        const title = content.valuesLabel(shown, state.protocol);
        picture.draw(
          neighbourhoodScene(target, values, this.#visible, picture.box, colors),
          colors,
          title,
          `Neighbourhood of ${name} by ${title}: ${count(target.nodes.length, "node")}, ${count(visible, "edge")} drawn; the table lists them`
        );
      }
    });
    this.note.textContent = notes2.join("; ");
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
    this.#panels().forEach((_, place2) => this.pictures[place2].highlight(shown));
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
      ArrowRight: () => this.#move(1),
      ArrowDown: () => this.#move(1),
      ArrowLeft: () => this.#move(-1),
      ArrowUp: () => this.#move(-1),
      PageDown: () => this.set({ target: this.list.neighbour(1) }),
      PageUp: () => this.set({ target: this.list.neighbour(-1) }),
      "+": () => this.viewport.zoom(1.4),
      "=": () => this.viewport.zoom(1.4),
      "-": () => this.viewport.zoom(1 / 1.4),
      0: () => this.viewport.fit(),
      Escape: () => this.choose(-1)
    };
    if (!(event.key in actions) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }
  /** Go to the next edge by score, of those that are drawn. */
  #move(step2) {
    const { content, state, target } = this;
    const order = ranking(content.values(target, state.method, state.protocol)).filter((edge) => this.pictures[0].shows(edge));
    if (order.length === 0) return;
    const place2 = order.indexOf(state.edge);
    const next = place2 < 0 ? step2 > 0 ? 0 : order.length - 1 : (place2 + step2 + order.length) % order.length;
    if (order[next] !== state.edge) this.choose(order[next]);
  }
  #save() {
    const { content, state, target } = this;
    const what = this.#tree ? ["tree"] : this.#panels().map((shown) => shown || `dpc_${state.protocol}`);
    const pictures2 = this.#panels().map((_, place2) => this.pictures[place2]);
    downloadSvg(pictures2, [content.kind, target.id, ...what].join("_").replaceAll(/[^\w.-]+/g, "_"));
  }
};
var countOf = (slider, size) => Math.max(1, Math.round(Math.exp(slider / 1e3 * Math.log(size))));
var sliderOf = (kept, size) => Math.round((size > 1 ? Math.log(kept) / Math.log(size) : 1) * 1e3);

// src/summary.js
var TOTAL = "faithfulness";
function summaryTable(content) {
  const own = content.metrics.filter((metric) => metric.method !== void 0);
  const others = content.metrics.filter((metric) => metric.method === void 0);
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
  const head = h("thead", {}, h(
    "tr",
    {},
    h("th", { scope: "col" }, "compared with"),
    methods.map((method) => h("th", { scope: "col", class: "number" }, content.label[method] ?? method))
  ));
  const bodies = protocols.map((protocol) => {
    const within = metrics.filter((metric) => metric.protocol === protocol);
    const statistics = [...new Set(within.map((metric) => metric.name))].sort((a, b) => (b === TOTAL) - (a === TOTAL));
    const heading = protocol === null ? "ground truth" : `protocol ${protocol}`;
    const meaning = content.protocols.find((one) => one.name === protocol)?.meaning;
    const rows = statistics.map((statistic) => {
      const values = methods.map((method) => within.find((metric) => metric.method === method && metric.name === statistic)?.value);
      const known = values.filter((value) => typeof value === "number");
      const best = known.length > 1 ? Math.max(...known) : NaN;
      return h(
        "tr",
        { class: statistic === TOTAL ? "total" : "" },
        h("th", { scope: "row" }, content.statistics[statistic] ?? statistic),
        values.map((value) => h(
          "td",
          { class: "number" },
          value === void 0 ? "" : value === best ? h("strong", {}, fixed(value)) : fixed(value)
        ))
      );
    });
    const label = h("th", { colspan: methods.length + 1, scope: "colgroup" }, heading, meaning ? h("small", {}, ` ${meaning}`) : "");
    return h("tbody", {}, h("tr", { class: "group" }, label), rows);
  });
  return h(
    "div",
    { class: "scroller", role: "region", tabindex: 0, "aria-label": "Summary table" },
    h("table", { class: "metrics" }, head, bodies)
  );
}
var fixed = (value) => value === null ? "undefined" : value.toFixed(4).replace("-", "−");

// src/main.js
function mount(root, document_, state = {}, changed = () => {
}) {
  const content = new Content(document_);
  let theme = ambientTheme();
  const themeButton = h("button", { type: "button", class: "theme", click: () => setTheme(theme === "dark" ? "light" : "dark") });
  const explorer = new Explorer(content, palette(theme), state, changed);
  const curves = h("div");
  const overview = [];
  const summary = summaryTable(content);
  if (summary) overview.push(h("section", { "aria-labelledby": "attree-summary" }, h("h2", { id: "attree-summary" }, "Summary"), summary));
  if (curvePanels(content, palette(theme))) {
    overview.push(h("section", { "aria-labelledby": "attree-training" }, h("h2", { id: "attree-training" }, "Training"), curves));
  }
  function setTheme(next) {
    theme = next;
    root.dataset.theme = theme;
    themeButton.textContent = theme === "dark" ? "Light" : "Dark";
    themeButton.setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
    curves.replaceChildren(...[curvePanels(content, palette(theme))].filter(Boolean));
    explorer.recolor(palette(theme));
  }
  const targets = count(content.numTargets, content.kind);
  const about = `${targets}, ${count(content.numPairs, "pair")} of a ${content.kind} and an edge around it`;
  root.classList.add("attree");
  root.replaceChildren(
    h("header", {}, h("div", {}, h("h1", {}, content.title), h("p", { class: "about" }, about)), themeButton),
    h("main", {}, overview.length > 0 ? h("div", { class: "overview" }, overview) : null, explorer.element)
  );
  setTheme(theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(ambientTheme()));
  return explorer;
}
function fromAddress(content) {
  const asked = new URLSearchParams(location.hash.slice(1));
  const state = {};
  const place2 = content.targets.findIndex((target) => String(target.id) === asked.get("target"));
  if (place2 >= 0) state.target = place2;
  if (content.methods.some((method) => method.name === asked.get("method"))) state.method = asked.get("method");
  if (content.protocols.some((protocol) => protocol.name === asked.get("protocol"))) state.protocol = asked.get("protocol");
  if (asked.get("view") === "tree") state.view = "tree";
  return state;
}
function toAddress(content, state) {
  const { method, protocol, view } = state;
  const asked = new URLSearchParams({ target: content.targets[state.target].id, method, protocol, view });
  history.replaceState(null, "", `#${asked}`);
}
var embedded = document.getElementById("attree-data");
if (embedded) {
  const content = JSON.parse(embedded.textContent);
  mount(document.getElementById("attree"), content, fromAddress(content), (state) => toAddress(content, state));
}
var main_default = {
  render({ model, el }) {
    const root = h("div");
    el.append(root);
    mount(root, model.get("content"));
  }
};
export {
  main_default as default,
  mount
};
