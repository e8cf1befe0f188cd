// TensorBoard's tab: all runs of the log folder, what their explanations are worth, and the explorer of each. The page of a sweep, too.

import { Comparison, STATISTICS } from "./compare.js";
import { curvePanels } from "./curves.js";
import { h, select } from "./dom.js";
import { count, whole } from "./format.js";
import { ambientTheme, palette } from "./palette.js";

/** What TensorBoard calls. */
export async function render() {
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: new URL("explorer.css", import.meta.url).href });
  document.head.append(style, h("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }));
  document.documentElement.lang = "en";
  document.title = "Explanations";
  const root = h("div", { class: "attree tab" });
  document.body.style.margin = "0";
  document.body.append(root);
  const tab = new Tab(root, (path, query) => ask(path, query), () => import(new URL("explorer.js", import.meta.url).href));
  await tab.load();
}

/** An answer of the plugin, as JSON; what it says if it refuses is the error. */
async function ask(path, query = {}) {
  const answer = await fetch(new URL(`../${path}?${new URLSearchParams(query)}`, import.meta.url)).catch(() => {
    throw new Error("TensorBoard does not answer: is it still running?");
  });
  if (answer.ok) return answer.json();
  const said = (answer.headers.get("Content-Type") ?? "").startsWith("text/plain") ? await answer.text() : "";
  throw new Error(said.trim() || `TensorBoard answered ${answer.status} (${path})`);
}

export class Tab {
  /** `ask(path, query)` answers questions about runs, `explorer()` loads the explorer when it is first needed. */
  constructor(root, ask_, explorer) {
    this.root = root;
    this.ask = ask_;
    this.explorer = explorer;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.comparison && this.#draw());
  }

  /** Read all runs again. */
  async load() {
    this.root.dataset.theme = ambientTheme();
    try {
      this.data = await this.ask("runs");
    } catch (error) {
      this.root.replaceChildren(this.#header(), h("main", {}, h("p", { class: "wrong", role: "alert" }, `The runs could not be read: ${error.message}`)));
      return;
    }
    this.data.runs.length > 0 ? this.#start() : this.#empty();
  }

  #header(about = "") {
    const reload = h("button", { type: "button", click: () => this.load() }, "Reload");
    return h("header", {}, h("div", {}, h("h1", {}, "How well attention explains"), h("p", { class: "about" }, about)), reload);
  }

  #empty() {
    this.root.replaceChildren(this.#header(), h("main", {}, h("section", { class: "empty" },
      h("h2", {}, "No run here has explanations yet"),
      h("p", {}, "TensorBoard looks in ", h("code", {}, this.data.logdir || "the folders it was started with"), ". A run appears here as soon as it has measured its explanations once:"),
      h("ul", {},
        h("li", {}, "with attree: ", h("code", {}, "attree fit --config infection")),
        h("li", {}, "in any Lightning project: ", h("code", {}, "Trainer(callbacks=[attree.ExplainCallback()], logger=TensorBoardLogger(\"logs\"))"))),
      h("p", {}, "Then press Reload."))));
  }

  #start() {
    const { runs, logdir } = this.data;
    this.comparison = new Comparison(this.data, (name) => this.choose(name), this.comparison?.state);
    this.run = h("section", { class: "run", "aria-label": "Chosen run" });
    const about = `${count(runs.length, "run")} with explanations in ${logdir || "several folders"}`;
    this.root.replaceChildren(this.#header(about), h("main", {}, this.comparison.element, this.run));
    const { run } = this.comparison.state;
    this.choose(runs.some(({ name }) => name === run) ? run : runs.at(-1).name, false);
  }

  #draw() {
    this.root.dataset.theme = ambientTheme();
    this.comparison.draw(palette(this.root.dataset.theme));
  }

  /** Open a run: its curves, and the explorer of what it saved. */
  async choose(name, scroll = true) {
    const run = this.data.runs.find((one) => one.name === name);
    this.comparison.state.run = name;
    this.#draw();
    const [curves, explorer] = [h("div", {}, h("p", { class: "notes" }, "reading curves …")), h("div", { class: "saved" })];
    this.run.replaceChildren(h("h2", {}, name), curves, explorer);
    if (scroll) this.run.scrollIntoView({ block: "start" });
    const isCurrent = () => this.comparison.state.run === name && this.run.contains(curves);
    try {
      const series = await this.ask("curves", { run: name });
      if (!isCurrent()) return;
      const label = Object.fromEntries(this.data.methods.map((method) => [method.name, method.label]));
      const panels = curvePanels({ curves: series, methods: this.data.methods, label, statistics: STATISTICS }, palette(this.root.dataset.theme));
      curves.replaceChildren(panels ?? h("p", { class: "notes" }, "This run has no curves."));
    } catch (error) {
      curves.replaceChildren(h("p", { class: "wrong" }, `Its curves could not be read: ${error.message}`));
    }
    if (isCurrent()) await this.#explore(run, explorer);
  }

  async #explore(run, place) {
    if (run.pages.length === 0) {
      place.replaceChildren(h("p", { class: "notes" }, "This run has saved no explanations to look at: a fit saves them at its end, and ",
        h("code", {}, `attree explain ${typed([this.data.logdir, run.name === "." ? "" : run.name].filter(Boolean).join("/"))}`), " at any time."));
      return;
    }
    const texts = run.pages.map((page) => [page, pageName(page)]);
    const page = run.pages.includes("explain/page.html") ? "explain/page.html" : run.pages.at(-1);
    const body = h("div", { class: "body" });
    const show = async (chosen) => {
      body.replaceChildren(h("p", { class: "notes" }, "reading explanations …"));
      try {
        const [content, { mount }] = await Promise.all([this.ask("page", { run: run.name, page: chosen }), this.explorer()]);
        const root = h("div");
        body.replaceChildren(root);
        mount(root, { ...content, curves: [] });
      } catch (error) {
        body.replaceChildren(h("p", { class: "wrong" }, `They could not be shown: ${error.message}`));
      }
    };
    place.replaceChildren(texts.length > 1 ? select("Explanations", texts, page, show).element : "", body);
    await show(page);
  }
}

/** A path as it is typed in a shell. */
const typed = (path) => (/^[\w@%+=:,./-]*$/.test(path) ? path : `'${path.replaceAll("'", `'\\''`)}'`);

function pageName(page) {
  const step = /(\d+)\.json$/.exec(page);
  return step ? `at step ${whole(Number(step[1]))}` : page === "page.html" ? "at the end of the fit" : "by attree explain";
}

/** The page of a sweep holds its runs, and opens the page of a run. */
const embedded = globalThis.document?.getElementById("attree-runs");
if (embedded) {
  const data = JSON.parse(embedded.textContent);
  const pages = new Map(data.runs.map((run) => [run.name, run.page]));
  const comparison = new Comparison(data, (name) => pages.get(name) && location.assign(pages.get(name)), { means: true, method: data.methods[0]?.name ?? "" });
  const root = document.getElementById("attree");
  const draw = () => {
    root.dataset.theme = ambientTheme();
    comparison.draw(palette(root.dataset.theme));
  };
  root.classList.add("attree", "tab");
  root.replaceChildren(comparison.element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
}
