"""Descriptions of the logged metrics, as sentences and tables for TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from attree.attribution import method_label
from attree.evaluation.names import BYPASS, FAITHFULNESS, METRIC_LABELS, PREFIX, SECONDS, TRUTH, MetricName
from attree.faithfulness import PROTOCOLS
from attree.metrics.functional.faithfulness import STATISTICS

DESCRIPTIONS = {
    FAITHFULNESS: "How well the method's scores predict the effect of reducing an edge's attention on the output: "
    "the mean of seven statistics. 1 is perfect; the correlations among them are 0 by chance, the AUROC 0.5.",
    TRUTH: "How well the method's scores find the edges that are known to cause the label: the probability that a true "
    "edge scores higher than another edge. 1 is perfect, 0.5 is chance.",
}
"""The meaning of the main numbers of a method."""

EFFECTS = {"pc": "how far the predicted class's probability falls", "ne": "how far the prediction's entropy rises"}
OTHER_DESCRIPTIONS = {
    "p_auroc": "How well the method's scores separate edges whose reduction changes the predicted class from all other "
    "edges (AUROC). 1 is perfect, 0.5 is chance.",
    BYPASS: "How much of the prediction bypasses attention, through skip connections and the like. 0 is nothing.",
    SECONDS: "How long this evaluation of the explanations took.",
}


def describe_metric(name: str) -> str:
    """Return the meaning of a logged metric; an empty string for metrics that are not of explanations.

    >>> describe_metric("explain/gatt/removal/pc_kendall").partition(" when ")[0]
    "Kendall's rank correlation of GAtt's scores with how far the predicted class's probability falls"
    >>> describe_metric("val/acc")
    ''
    """
    metric = MetricName.parse(name)
    if metric is None:
        return OTHER_DESCRIPTIONS.get(name, "")
    measure, _, statistic = metric.statistic.partition("_")
    if metric.statistic in STATISTICS and measure in EFFECTS:
        kind = "Pearson's" if statistic == "pearson" else f"{statistic.capitalize()}'s rank"
        text = f"{kind} correlation of {method_label(metric.method)}'s scores with {EFFECTS[measure]} when an edge is "
        text += "reduced. 1 is perfect, 0 is chance."
    else:
        known = DESCRIPTIONS | OTHER_DESCRIPTIONS
        text = known.get(metric.statistic) or f"{METRIC_LABELS.get(metric.statistic, metric.statistic)}."
    if metric.protocol in PROTOCOLS:
        text += f" Reduced by `{metric.protocol}`: {PROTOCOLS[metric.protocol].meaning}."
    return text


def results_text(metrics: Mapping[str, float]) -> str:
    """Return the final numbers as a Markdown table with one column per method, and their meaning.

    >>> print(results_text({"explain/gatt/truth_auroc": 0.9931}).splitlines()[2])
    | ground truth, AUROC | 0.9931 |
    """
    named = {name: metric for name in metrics if (metric := MetricName.parse(name)) is not None}
    methods = list(dict.fromkeys(metric.method for metric in named.values()))
    rows: dict[str, dict[str, str]] = {}
    for name, metric in named.items():
        if metric.statistic in DESCRIPTIONS:
            reduced = f", reduced by {metric.protocol}" if metric.protocol else ""
            label = METRIC_LABELS.get(metric.statistic, metric.statistic)
            value = metrics[name]
            rows.setdefault(label + reduced, {})[metric.method] = "undefined" if math.isnan(value) else f"{value:.4f}"
    lines = ["| | " + " | ".join(map(method_label, methods)) + " |", "|---" * (len(methods) + 1) + "|"]
    lines += [
        f"| {label} | " + " | ".join(row.get(method, "") for method in methods) + " |" for label, row in rows.items()
    ]
    meanings = [f"**{name}**: {text}" for name, text in ((METRIC_LABELS[TRUTH], DESCRIPTIONS[TRUTH]),)]
    meanings.append(f"**faithfulness**: {DESCRIPTIONS[FAITHFULNESS]}")
    others = [f"{name} {metrics[name]:.4f}" for name in accuracy_names(metrics)]
    more = "All runs side by side, with their explanations: the tab *Explanations*."
    return "\n".join([*lines, "", *[f"{text}\n" for text in (*meanings, *others, more)]])


def accuracy_names(metrics: Iterable[str]) -> list[str]:
    """Return the names of validation accuracies, whatever a module calls them; without any, all accuracies.

    >>> accuracy_names(["train/loss", "val_acc", "train_acc"]), accuracy_names(["val/loss", "Accuracy"])
    (['val_acc'], ['Accuracy'])
    """
    found = [name for name in metrics if "acc" in name.lower() and not name.startswith(PREFIX)]
    validated = [name for name in found if "val" in name.lower()]
    return validated or found
