"""Descriptions of the logged metrics, as sentences and tables for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attree.attribution import method_label
from attree.evaluation.names import (
    BYPASS,
    EFFECTS,
    FAITHFULNESS,
    METRIC_LABELS,
    PREFIX,
    SECONDS,
    TRUTH,
    WITHIN,
    MetricName,
)
from attree.evaluation.short_table import short_table
from attree.faithfulness import PROTOCOLS
from attree.metrics.functional.faithfulness import STATISTICS

DESCRIPTIONS = {
    WITHIN: "How well the method's scores find the edges that matter to a single prediction: Pearson's correlation of "
    "scores with the effects of reducing each edge, within each target; the mean over targets. 1 is perfect, 0 is "
    "chance.",
    FAITHFULNESS: "How well the method's scores predict the effect of reducing an edge's attention on the output: "
    "the mean of seven statistics. 1 is perfect; the correlations among them are 0 by chance, the AUROC 0.5.",
    TRUTH: "How well the method's scores find the edges that are known to cause the label: the probability that a true "
    "edge scores higher than another edge. 1 is perfect, 0.5 is chance.",
}
"""The meaning of the main numbers of a method."""

CHANGES = {"pc": "how far the predicted class's probability falls", "ne": "how far the prediction's entropy rises"}
OTHER_DESCRIPTIONS = {
    "p_auroc": "How well the method's scores separate edges whose reduction changes the predicted class from all other "
    "edges (AUROC). 1 is perfect, 0.5 is chance.",
    BYPASS: "How much of the prediction bypasses attention, through skip connections and the like. 0 is nothing.",
    SECONDS: "How long this evaluation of the explanations took.",
}


SIZES = {
    "strongest": "The effect of a target's strongest edge on the predicted probability (or number); the median over "
    "targets.",
    "edges_90": "How many edges hold 90 % of a target's effect; the median over targets with an effect.",
    "targets_without": "The number of targets for which no single edge has an effect.",
    "two_together": "The effect of a target's two strongest edges, reduced at once; the median over targets. It is "
    "measured where edges may stand in for each other.",
    "two_apart": "The sum of the single effects of a target's two strongest edges; the median over targets.",
}
"""The meaning of the sizes of effects."""


def describe_metric(name: str) -> str:
    """Return the meaning of a logged metric; an empty string for metrics that are not of explanations.

    >>> describe_metric("explain/gatt/removal/pc_kendall").partition(" when ")[0]
    "Kendall's rank correlation of GAtt's scores with how far the predicted class's probability falls"
    >>> describe_metric("val/acc")
    ''
    """
    metric = MetricName.parse(name)
    if metric is None:
        return SIZES.get(name.rpartition("/")[2], "") if f"/{EFFECTS}/" in name else OTHER_DESCRIPTIONS.get(name, "")
    measure, _, statistic = metric.statistic.partition("_")
    if metric.statistic in STATISTICS and measure in CHANGES:
        kind = "Pearson's" if statistic == "pearson" else f"{statistic.capitalize()}'s rank"
        text = f"{kind} correlation of {method_label(metric.method)}'s scores with {CHANGES[measure]} when an edge is "
        text += "reduced. 1 is perfect, 0 is chance."
    else:
        descriptions = DESCRIPTIONS | OTHER_DESCRIPTIONS
        text = descriptions.get(metric.statistic) or f"{METRIC_LABELS.get(metric.statistic, metric.statistic)}."
    if metric.protocol in PROTOCOLS:
        text += f" Reduced by `{metric.protocol}`: {PROTOCOLS[metric.protocol].meaning}."
    return text


def results_text(metrics: Mapping[str, float], headline: str = "") -> str:
    """Return the headline, the short table in Markdown, and the meaning of its numbers.

    Args:
        metrics: The final metrics by name.
        headline: The headline of the verdict.

    >>> print(results_text({"explain/gatt/truth_auroc": 0.9931}).splitlines()[2])
    | GAtt | **0.99** |
    """
    methods = {metric.method for name in metrics if (metric := MetricName.parse(name)) is not None}
    short = short_table(metrics, {method: method_label(method) for method in methods})
    lines = ["| | " + " | ".join(short.headers) + " |", "|---" * (len(short.headers) + 1) + "|"]
    for label, cells in short.rows.items():
        texts = (f"**{cell.text}**" if cell.is_best else cell.text for cell in cells)
        lines.append(f"| {label} | " + " | ".join(texts) + " |")
    meanings = [f"**true edges**: {DESCRIPTIONS[TRUTH]}", f"**the other columns**: {DESCRIPTIONS[WITHIN]}"]
    others = [f"{name} {metrics[name]:.4f}" for name in accuracy_names(metrics)]
    more = "All runs side by side, with their explanations: the tab *Explanations*."
    head = [f"**{line}**\n" for line in headline.splitlines()]
    return "\n".join([*head, *lines, "", *[f"{text}\n" for text in (*meanings, *others, more)]])


def accuracy_names(metrics: Iterable[str]) -> list[str]:
    """Return the names of validation accuracies, whatever a module calls them; without any, all accuracies.

    >>> accuracy_names(["train/loss", "val_acc", "train_acc"]), accuracy_names(["val/loss", "Accuracy"])
    (['val_acc'], ['Accuracy'])
    """
    accuracies = [name for name in metrics if "acc" in name.lower() and not name.startswith(PREFIX)]
    validated = [name for name in accuracies if "val" in name.lower()]
    return validated or accuracies
