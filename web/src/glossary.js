// The page in plain words: what each word and symbol means, where it stands and in one drawer.

import { h } from "./dom.js";

/** Words that a reader may not know. Protocols explain themselves: the page is told what each does. */
export const WORDS = {
  method: ["Method", "A way to give every edge a score: how much it contributed to this prediction. GAtt multiplies attention along the paths that lead to the target and adds the paths up; AvgAtt averages attention over layers; Uniform is GAtt with all neighbours weighed alike; Random is chance. Exact effects (occlusion) are measured by taking edges out."],
  compare: ["Compare with", "Draws a second picture of the same edges: by another method, or by what really happens when an edge is reduced. Where the two agree, the method tells the truth about this prediction."],
  protocol: ["Reduce an edge by", "What “taking an edge away” means."],
  strongest: ["Strongest edges", "Draws only the edges with the largest scores, for or against the prediction. The table lists what is drawn."],
  pc: ["drop of confidence (ΔPC)", "By how much the probability of the predicted class falls when this edge is reduced. 0.30 means: from 90 % to 60 %, say. Negative, in green: the network becomes surer without the edge, so the edge speaks against the prediction."],
  drop: ["drop of the number", "By how much the predicted number falls when this edge is reduced. Negative, in green: the number rises without the edge."],
  ne: ["loss of certainty (ΔNE)", "By how much the entropy of all class probabilities rises when this edge is reduced. Positive: the prediction becomes less certain; negative: more certain."],
  then: ["prediction then", "The predicted class and its probability with this edge reduced. Changed classes are in colour."],
  truth: ["true explanation", "Edges that are known to cause the label, because the data was made that way. A good method gives them the highest scores."],
  confidence: ["confidence, Pearson", "How well a method's scores follow the drop of confidence when each edge is reduced (Pearson's correlation). 1 is perfect, 0 is chance. It is over the edges of all targets together, and stands here where the statistic within targets is undefined."],
  within: ["within targets, Pearson", "How well a method's scores follow the effects of the edges of one prediction: Pearson's correlation for each target, then the mean over targets. 1 is perfect, 0 is chance."],
  faithfulness: ["faithfulness (mean)", "How well a method's scores predict the effect of reducing each edge: the mean of seven statistics (three correlations with the drop of confidence, three with the loss of certainty, one AUROC for changed predictions). 1 is perfect, 0 is chance for the correlations."],
  auroc: ["ground truth, AUROC", "The chance that a true edge gets a higher score than another edge. 1 is perfect, 0.5 is chance."],
  interval: ["intervals", "95 % intervals: with other targets of the same kind the number would mostly fall within. Two methods whose intervals overlap widely may be equally good."],
  undefined: ["undefined", "The statistic does not exist here: no prediction changed, or all scores are equal. It is not zero."],
  tree: ["computation tree", "Everything the network computes for the target: the target on top, below it what it attended to in the last layer, and so on down to the inputs. The same node may occur many times. The attention along a path multiplies; GAtt of an edge is the sum over its occurrences."],
  whatif: ["What if?", "What the network predicts when edges are reduced. The effect of each single edge was measured. For several edges at once the network runs again: in this page, if it holds the weights of a small network, else with attree serve."],
};

/** A question mark beside a word; opens what it means, by mouse, touch and keyboard. */
export function term(word, extra = []) {
  const [name, meaning] = WORDS[word];
  const note = h("div", { class: "note" }, h("p", {}, meaning), extra.map((text) => h("p", {}, text)));
  const details = h("details", {
    class: "term",
    toggle: () => {
      if (!details.open) return;
      note.style.marginLeft = "0px";
      const over = note.getBoundingClientRect().right - document.documentElement.clientWidth + 8;
      if (over > 0) note.style.marginLeft = `${-over}px`;
    },
    keydown: (event) => {
      if (event.key !== "Escape" || !details.open) return;
      details.open = false;
      details.firstChild.focus();
    },
    focusout: (event) => {
      if (!details.contains(event.relatedTarget)) details.open = false;
    },
  }, h("summary", { "aria-label": `What is meant by ${name}?` }, "?"), note);
  return details;
}

/** The drawer: how to read the page, and every word. */
export function guide(content) {
  const { kind } = content;
  const has = { tree: content.targets.some((target) => target.layers), truth: content.targets.some((target) => target.truth) };
  const steps = [
    `Pick a ${NAMES[kind] ?? "graph"} on the left. The list begins with those that are easiest to check: predicted right, small, and sure.`,
    `The picture shows the part of the graph that the network looked at. ${ROOTS[kind] ?? ""} An arrow runs the way information flows; the thicker and darker it is, the more the method says it mattered. Where scores have a sign, red edges speak for the prediction and green ones against it.`,
    content.protocols.length > 0
      ? `Compare the picture with what really happens: choose “${content.dropName}” under “Compare with”. A method to trust draws the same arrows thick.`
      : null,
    has.truth ? "Edges with a blue halo are known to be the true explanation." : null,
    "Click an edge, here or in the table, to see every number about it and what the network predicts without it.",
    has.tree ? "The computation tree shows why an edge has its score: the products of attention along all paths through it." : null,
  ];
  const left = new Set([...(has.tree ? [] : ["tree"]), ...(has.truth ? [] : ["truth", "auroc"])]);
  if (content.protocols.length === 0) for (const word of ["pc", "ne", "then", "protocol", "whatif", "faithfulness", "within"]) left.add(word);
  if (!content.metrics.some((metric) => metric.interval)) left.add("interval");
  left.add("confidence");
  for (const word of content.predictsNumbers ? ["pc", "ne", "then", "faithfulness"] : ["drop"]) left.add(word);
  const words = Object.entries(WORDS).filter(([word]) => !left.has(word));
  return h("details", { class: "guide" },
    h("summary", {}, "How to read this page"),
    h("ol", {}, steps.filter(Boolean).map((step) => h("li", {}, step))),
    h("dl", {}, words.map(([, [name, meaning]]) => h("div", {}, h("dt", {}, name), h("dd", {}, meaning))),
      content.protocols.filter(({ meaning }) => meaning).map(({ name, meaning }) =>
        h("div", {}, h("dt", {}, `reduced by ${name}`), h("dd", {}, meaning)))),
    h("p", { class: "notes" }, "Keys on the picture: arrows go from edge to edge, Page Up and Down to other targets, + and − zoom, 0 fits, Escape lets go."));
}

const NAMES = { node: "node", edge: "link" };
const ROOTS = {
  node: "The ringed node is the one whose prediction is explained.",
  edge: "The two ringed nodes are the link whose prediction is explained.",
  graph: "The whole graph is what the prediction is about.",
};
