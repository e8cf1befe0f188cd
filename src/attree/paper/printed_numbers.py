"""The numbers that the paper prints, and its known misprints; read from data files of the package."""

from __future__ import annotations

from functools import cache
from importlib import resources

import pandas as pd

from attree.errors import expect

TABLES = (
    "faithfulness",
    "explanation",
    "ablation",
    "multihead",
    "head_selection",
    "graph_level",
    "proximity",
    "runtime",
    "datasets",
)
"""Names of the stored tables of the paper."""


@cache
def _read(name: str) -> pd.DataFrame:
    path = resources.files("attree.paper") / "printed" / f"{name}.csv"
    with path.open("r", encoding="utf-8") as stream:
        return pd.read_csv(stream)


def printed(table: str) -> pd.DataFrame:
    """Return the numbers of one of the paper's tables: one per row, with the columns that identify it.

    >>> rows = printed("ablation")
    >>> float(rows[(rows.dataset == "CiteSeer") & (rows.layers == 2) & (rows.method == "gatt_avg")].paper.iloc[0])
    0.4761
    """
    expect(table in TABLES, "table", f"one of {', '.join(TABLES)}", table)
    return _read(table).copy()


def slips(table: str) -> pd.DataFrame:
    """Return the known misprints of a table: the printed number, the number that was meant (if known), and why."""
    expect(table in TABLES, "table", f"one of {', '.join(TABLES)}", table)
    rows = _read("slips")
    return rows[rows["table"] == table].drop(columns="table").reset_index(drop=True)


def add_printed(rows: pd.DataFrame, table: str) -> pd.DataFrame:
    """Put the paper's numbers beside ours.

    Args:
        rows: Our numbers, one per row, in the column `ours`, with the columns that identify a printed number.
        table: The printed table.

    Returns:
        The rows with four more columns: `paper`, the printed number; `meant`, the same, or the correct number of a
        known misprint; `difference`, ours minus `meant`; `slip`, the description of a misprint. They are NaN where the
        paper has no number.
    """
    numbers, wrong = printed(table), slips(table)
    keys = [name for name in numbers.columns if name != "paper" and name in rows.columns]
    found = rows.merge(numbers, on=keys, how="left")
    found["paper"] = pd.to_numeric(found["paper"], errors="coerce")
    wrong_keys = [name for name in keys if name in wrong.columns]
    wrong = wrong.dropna(subset=wrong_keys).astype({name: numbers[name].dtype for name in wrong_keys})
    found = found.merge(wrong[[*wrong_keys, "meant", "what"]], on=wrong_keys, how="left")
    known = pd.to_numeric(found["meant"], errors="coerce")
    found["meant"] = known.where(known.notna(), found["paper"])
    found["difference"] = found["ours"] - found["meant"]
    return found.rename(columns={"what": "slip"})
