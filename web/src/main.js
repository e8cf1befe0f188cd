// The page, the notebook widget and a run of TensorBoard's tab: the headline, the explorer, a summary and training curves.

import { fromText, toText } from "./address.js";
import { curvePanels } from "./curves.js";
import { Content } from "./data.js";
import { h } from "./dom.js";
import { Explorer } from "./explorer.js";
import { count } from "./format.js";
import { guide } from "./glossary.js";
import { Network } from "./network.js";
import { ambientTheme, palette } from "./palette.js";
import { summaryTable, verdictBox } from "./summary.js";

export { Content, Network };

/**
 * Build everything inside `root`.
 * @param asked What to look at first, as `address.js` writes it.
 * @param changed Is told the same when the reader looks elsewhere.
 * @param link Gives an address that shows what is seen; null if there is none.
 */
export function mount(root, document_, asked = "", changed = () => {}, link = null) {
  const network = document_.network ? new Network(document_.network) : null;
  const content = new Content(network ? { ...document_, live: async (...about) => network.answer(...about) } : document_);
  const state = fromText(content, asked);
  let theme = state.theme ?? ambientTheme();
  const themeButton = h("button", {
    type: "button", class: "theme",
    click: () => {
      explorer.state.theme = theme === "dark" ? "light" : "dark";
      setTheme(explorer.state.theme);
      explorer.changed(explorer.state);
    },
  });
  const explorer = new Explorer(content, palette(theme), state, (own) => changed(toText(content, own)), link);
  const [summary, curves] = [h("div"), h("div")];
  const overview = [];
  if (summaryTable(content, palette(theme))) overview.push(h("section", { "aria-labelledby": "attree-summary" }, h("h2", { id: "attree-summary" }, "How well the methods explain"), summary));
  if (curvePanels(content, palette(theme))) {
    overview.push(h("section", { "aria-labelledby": "attree-training" }, h("h2", { id: "attree-training" }, "Training"), curves));
  }

  function setTheme(next) {
    theme = next;
    root.dataset.theme = theme;
    themeButton.textContent = theme === "dark" ? "Light" : "Dark";
    themeButton.setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
    summary.replaceChildren(...[summaryTable(content, palette(theme))].filter(Boolean));
    curves.replaceChildren(...[curvePanels(content, palette(theme))].filter(Boolean));
    explorer.recolor(palette(theme));
  }

  const them = content.numTargets === 1 ? "it" : "them";
  const about = `${count(content.numTargets, content.noun.toLowerCase())} explained, ${count(content.numPairs, "edge")} ${content.kind === "graph" ? "in" : "around"} ${them}`;
  root.classList.add("attree");
  root.replaceChildren(
    h("header", {}, h("div", {}, h("h1", {}, content.title), h("p", { class: "about" }, about)), themeButton),
    h("main", {}, verdictBox(content), explorer.element, overview.length > 0 ? h("div", { class: "overview" }, overview) : null),
    guide(content),
  );
  setTheme(theme);
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  preferred.addEventListener("change", () => root.isConnected && !explorer.state.theme && setTheme(ambientTheme()));
  return explorer;
}

/** A page of its own keeps what is looked at in its address. */
function mountPage(content) {
  const keep = (text) => history.replaceState(null, "", `#${text}`);
  mount(document.getElementById("attree"), content, location.hash.slice(1), keep, () => location.href);
}

/** A question about a target of the page, in the numbers of whoever holds the model. */
const question = (target, cut, protocol) => ({ target: target.position, edges: cut.map((edge) => target.edges[edge]), protocol });

/** What a live page asks the server of its model. */
async function askServer(...about) {
  const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question(...about)) };
  const answer = await fetch("what_if", request).catch(() => {
    throw new Error("The network does not answer: attree serve has stopped. Start it again and reload this page.");
  });
  const content = await answer.json().catch(() => ({ error: `The network does not answer (${answer.status}). Try again.` }));
  if (!answer.ok) throw new Error(content.error);
  return content;
}

const embedded = document.getElementById("attree-data");
if (embedded) {
  const content = JSON.parse(embedded.textContent);
  mountPage(content.serves ? { ...content, live: askServer } : content);
}

/** What a live widget asks the kernel of its model: a numbered message there, and one back. */
function askKernel(model) {
  let asked = 0;
  const waiting = new Map();
  model.on("msg:custom", (message) => {
    const [done, failed] = waiting.get(message.number) ?? [];
    waiting.delete(message.number);
    if (done) message.error ? failed(new Error(message.error)) : done(message);
  });
  return (...about) => new Promise((done, failed) => {
    waiting.set(++asked, [done, failed]);
    model.send({ number: asked, ...question(...about) });
  });
}

/** The notebook widget (anywidget). */
export default {
  render({ model, el }) {
    const root = h("div");
    el.append(root);
    const content = model.get("content");
    mount(root, content.serves ? { ...content, live: askKernel(model) } : content);
  },
};
