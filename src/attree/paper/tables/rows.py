"""Turn results of cells into rows of tables: per network, as means over seeds, and beside the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pandas as pd

from attree.evaluation import MetricName
from attree.paper.cells import Cell, FaithfulnessCell, Result
from attree.paper.printed_numbers import add_printed
from attree.paper.report_items import FAR, FEW_CHANGED, NEAR

KEYS = ("dataset", "model", "layers", "heads", "method", "protocol", "statistic")


def authors_protocol(model: str) -> str:
    """Return the protocol that the authors' code uses for a network."""
    return "weight" if model == "GAT" else "coefficient"


def faithfulness_rows(results: Mapping[Cell, Result]) -> pd.DataFrame:
    """Return one row per statistic and network."""
    rows = []
    for cell, result in results.items():
        if not isinstance(cell, FaithfulnessCell):
            continue
        net = cell.net
        for name, value in result["metrics"].items():
            metric = MetricName.parse(name)
            if metric is None or metric.protocol is None:
                continue
            low, high = result["intervals"].get(name, (math.nan, math.nan))
            rows.append(
                {
                    "dataset": net.dataset,
                    "model": net.model,
                    "layers": net.layers,
                    "heads": net.heads,
                    "method": metric.method,
                    "protocol": metric.protocol,
                    "statistic": metric.statistic,
                    "weight_decay": net.weight_decay,
                    "attention_dropout": net.attention_dropout,
                    "seed": net.seed,
                    "ours": value,
                    "low": low,
                    "high": high,
                    "targets": result["targets"],
                    "pairs": result["pairs"],
                    "changed": result["changed"][metric.protocol],
                    "accuracy": result["accuracy"],
                }
            )
    return pd.DataFrame(rows)


def over_seeds(rows: pd.DataFrame, keys: Iterable[str]) -> pd.DataFrame:
    """Return means and standard deviations over seeds, grouped by `keys`, in order of appearance."""
    keys = list(keys)
    grouped = rows.groupby(keys, sort=False, dropna=False)
    means = grouped["ours"].mean().rename("ours").to_frame()
    means["spread"] = grouped["ours"].std()
    means["seeds"] = grouped["ours"].count()
    for column in ("low", "high", "targets", "pairs", "changed", "accuracy"):
        if column in rows:
            means[column] = grouped[column].mean()
    return means.reset_index()


def with_reasons(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the column `reason`: why a number is far from the paper's, if the measured numbers explain it."""
    return rows.assign(reason=[_reason(row) for _, row in rows.iterrows()])


def _reason(row: pd.Series) -> str:
    """Return the reason for a number's large difference from the paper's; empty if the difference is not large."""
    if not (isinstance(row["difference"], float) and abs(row["difference"]) > FAR):
        return ""
    if isinstance(row.get("slip"), str):
        return row["slip"]
    meant, low, high = row["meant"], row.get("low", math.nan), row.get("high", math.nan)
    changed = row.get("changed", math.nan)
    if row["statistic"] == "p_auroc" and changed < FEW_CHANGED:
        return f"rests on {changed:.0f} changed predictions a network"
    if row["method"] == "random":
        return "a random method: the paper has one draw"
    other, noisy = row.get("authors_dpc", math.nan), row.get("noise", math.nan)
    if abs(other - meant) <= FAR:
        return f"the authors' code measures max p - max p', which gives {other:.2f} here"
    if min(row["ours"], noisy) <= meant <= max(row["ours"], noisy) or abs(noisy - meant) <= FAR:
        return f"ties: with noise in the last digit, as on a device that adds in any order, {noisy:.2f}"
    if low <= meant <= high:
        return f"within the interval over targets, {low:.2f} to {high:.2f}"
    spread = row.get("spread", math.nan)
    if math.isfinite(spread) and abs(row["difference"]) <= 2 * spread:
        return f"within twice the standard deviation over seeds, {spread:.2f}; the paper has one network"
    return "unexplained"


def beside_paper(rows: pd.DataFrame, table: str, otherwise: Mapping[str, pd.DataFrame] | None = None) -> pd.DataFrame:
    """Add the paper's numbers to means, with reasons for large differences.

    Args:
        rows: Means over seeds.
        table: The printed table.
        otherwise: Other measurements of the same rows that may explain a difference: `authors_dpc`, with the quantity
            that the authors' code measures instead of dPC; `noise`, with noise in the last digit.
    """
    if len(rows) == 0:
        return rows
    merged = add_printed(rows, table)
    keys = [name for name in KEYS if name in rows]
    for name, other in (otherwise or {}).items():
        merged = merged.merge(other[[*keys, "ours"]].rename(columns={"ours": name}), on=keys, how="left")
    return with_reasons(merged)


def agreement(rows: pd.DataFrame) -> str:
    """Return a sentence on how many numbers agree with the paper's."""
    compared = rows[rows["difference"].notna()] if "difference" in rows else rows[:0]
    if len(compared) == 0:
        return "No number to compare with the paper's."
    away = compared["difference"].abs()
    near, far = int((away <= NEAR).sum()), int((away > FAR).sum())
    unexplained = int((compared["reason"] == "unexplained").sum())
    as_printed = int(((compared["ours"] - compared["paper"]).abs() <= NEAR).sum())
    share = f"{near} of {len(compared)} numbers ({near / len(compared):.0%}) are within 0.05 of what the paper meant"
    return (
        f"{share} ({as_printed} of what it prints), {far} differ by more than 0.1; "
        f"{unexplained} of these are unexplained."
    )
