"""The tables of docs/lab that are made of a sweep's `results.csv`: one row per run, with block, settings and seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from scipy import stats

NOT_SETTINGS = ("sweep", "seed", "run")
WORDS = {
    "flat": "`entropy` {value:g}, `flatter`",
    "uniform_away": "`uniform_distance` {value:g}, `away`",
    "head_agreement": "`head_agreement` {value:g}, 4 heads",
}
"""How a setting of the sweeps of penalties is written; others: name and strength."""
STUDY = {"gatt": 3, "avgatt": 0, "random": 0}
"""Methods in the table of the paper's study, and whether their spread is printed."""


def penalties_table(results: Path) -> str:
    """What each penalty does: accuracy, GAtt under both protocols, and how much it has over uniform attention."""
    runs = pd.read_csv(results)
    protocols = {f"GAtt `{protocol}`": f"explain/{{}}/{protocol}/faithfulness" for protocol in ("weight", "removal")}
    columns = {**protocols, "truth AUROC": "explain/{}/truth_auroc"}
    columns = {heading: name for heading, name in columns.items() if name.format("gatt") in runs}
    headings = ["penalty", "val/acc"]
    for heading in columns:
        headings += [heading, "over uniform"]
    rows = []
    for setting, strength, group in _settings(runs):
        words = WORDS.get(setting, "`" + setting + "` {value:g}").format(value=strength)
        if strength == 0:
            words = "none, 4 heads" if setting == "head_agreement" else "none"
        cells = [words, _spread(group["val/acc"])]
        for name in columns.values():
            gatt, uniform = group[name.format("gatt")], group[name.format("uniform")]
            cells += [_spread(gatt), _spread(gatt - uniform, signed=True)]
        rows.append(cells)
    return _markdown(headings, rows)


def study_table(results: Path) -> str:
    """The paper's study: accuracy and faithfulness of each weight decay and dropout."""
    runs = pd.read_csv(results)
    rows = []
    for setting, value, group in _settings(runs):
        cells = [f"{setting.replace('_', ' ')} {value:g}", _spread(group["val/acc"])]
        for method, digits in STUDY.items():
            faithfulness = group[f"explain/{method}/weight/faithfulness"]
            cells.append(_spread(faithfulness) if digits else f"{faithfulness.mean():.3f}")
        rows.append(cells)
    return _markdown(["", "val/acc", "GAtt", "AvgAtt", "Random"], rows)


def networks_table(results: Path) -> str:
    """Five networks, explained by the same methods: means within targets, and half of the 95 % intervals over seeds."""
    runs = pd.read_csv(results)
    metrics = {
        "validation accuracy": "val/acc",
        "edge deleted: structure": "explain/structure/removal/within_pearson",
        "message gradient": "explain/message_gradient/removal/within_pearson",
        "saliency": "explain/saliency/removal/within_pearson",
        "weight set to 0: structure": "explain/structure/weight/within_pearson",
        "saliency ": "explain/saliency/weight/within_pearson",
    }
    groups = {str(network).rpartition(".")[2]: group for network, group in runs.groupby("network", sort=False)}
    rows = [[network] for network in groups]
    for heading, metric in metrics.items():
        means = [f"{group[metric].mean():.2f}" for group in groups.values()]
        best = max(means, key=float) if heading != "validation accuracy" else ""
        for row, mean, group in zip(rows, means, groups.values(), strict=True):
            half = stats.t.ppf(0.975, len(group) - 1) * group[metric].sem()
            row.append(f"{f'**{mean}**' if mean == best else mean} ±{half:.2f}")
    return _markdown(["network", *(heading.strip() for heading in metrics)], rows, right=True)


def _settings(runs: pd.DataFrame) -> Iterator[tuple[str, float, pd.DataFrame]]:
    """Yield each block's settings: name and value, and the runs of all seeds."""
    for _, block in runs.groupby("sweep", sort=False):
        first_metric = next(place for place, name in enumerate(runs.columns) if "/" in name)
        names = [name for name in runs.columns[:first_metric] if name not in NOT_SETTINGS and block[name].notna().any()]
        for value, group in block.groupby(names[0], sort=False):
            yield names[0], float(str(value)), group


def _spread(values: pd.Series, signed: bool = False) -> str:
    """Mean and standard deviation over the runs."""
    mean = f"{values.mean():+.3f}" if signed else f"{values.mean():.3f}"
    return f"{mean} ± {values.std():.3f}"


def _markdown(headings: list[str], rows: list[list[str]], right: bool = False) -> str:
    rules = ["---", *["---:" if right else "---"] * (len(headings) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(rules)}|", *lines[1:]]) + "\n"
