// The page and the notebook widget: a summary, training curves, and the explorer.

import { curvePanels } from "./curves.js";
import { Content } from "./data.js";
import { h } from "./dom.js";
import { Explorer } from "./explorer.js";
import { count } from "./format.js";
import { ambientTheme, palette } from "./palette.js";
import { summaryTable } from "./summary.js";

/** Build everything inside `root`; `state` is what to look at first, `changed` is told when the reader looks elsewhere. */
export function mount(root, document_, state = {}, changed = () => {}) {
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
    h("main", {}, overview.length > 0 ? h("div", { class: "overview" }, overview) : null, explorer.element),
  );
  setTheme(theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(ambientTheme()));
  return explorer;
}

/** What to look at first, from the address: #target=17&method=gatt&view=tree. */
function fromAddress(content) {
  const asked = new URLSearchParams(location.hash.slice(1));
  const state = {};
  const place = content.targets.findIndex((target) => String(target.id) === asked.get("target"));
  if (place >= 0) state.target = place;
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

const embedded = document.getElementById("attree-data");
if (embedded) {
  const content = JSON.parse(embedded.textContent);
  mount(document.getElementById("attree"), content, fromAddress(content), (state) => toAddress(content, state));
}

/** The notebook widget (anywidget). */
export default {
  render({ model, el }) {
    const root = h("div");
    el.append(root);
    mount(root, model.get("content"));
  },
};
