from __future__ import annotations

import math

import pandas as pd
import pytest

from attree.errors import ArgumentError
from attree.paper.printed_numbers import TABLES, add_printed, printed, slips


def test_faithfulness_has_every_cell_of_both_full_tables_and_supergat() -> None:
    rows = printed("faithfulness")
    keys = ["dataset", "model", "layers", "method", "statistic"]
    assert len(rows) == len(rows.drop_duplicates(keys)) == (7 * 2 + 2) * 2 * 3 * 7
    found = rows.set_index(keys)["paper"]
    assert found["PubMed", "GAT", 3, "gatt", "ne_spearman"] == 0.6187
    assert found["Arxiv", "GATv2", 2, "avgatt", "p_auroc"] == 0.2560
    assert found["Cora", "SuperGAT-SD", 3, "random", "p_auroc"] == 0.2744
    assert rows["paper"].abs().max() <= 1


def test_every_slip_is_a_number_of_its_table() -> None:
    for table in TABLES:
        numbers = printed(table)
        for slip in slips(table).to_dict("records"):
            named = {key: slip[key] for key in ("dataset", "model", "layers", "method", "statistic")}
            named = {key: value for key, value in named.items() if not pd.isna(value) and key in numbers}
            found = numbers
            for key, value in named.items():
                found = found[found[key] == value]
            assert len(found) >= 1 or table in ("datasets", "runtime"), slip
            if not pd.isna(slip["printed"]) and "paper" in found and len(found) == 1:
                assert math.isclose(float(found["paper"].iloc[0]), float(slip["printed"]))


@pytest.mark.parametrize("measure", ["pc", "ne"])
def test_swapped_rank_correlations_of_cora_are_told_by_their_sizes(measure: str) -> None:
    rows = printed("faithfulness").set_index(["dataset", "model", "layers", "method", "statistic"])["paper"]
    swapped = {
        dataset
        for dataset in printed("faithfulness")["dataset"].unique()
        for layers in (2, 3)
        if abs(rows[dataset, "GAT", layers, "gatt", f"{measure}_kendall"])
        > abs(rows[dataset, "GAT", layers, "gatt", f"{measure}_spearman"])
    }
    assert swapped == {"Cora"}


def test_differences_are_from_what_was_meant() -> None:
    shared = {"dataset": "Cora", "model": "GAT", "layers": 2, "method": "gatt"}
    ours = pd.DataFrame(
        [
            {**shared, "statistic": "pc_pearson", "ours": 0.8},
            {**shared, "statistic": "pc_kendall", "ours": 0.65},
            {**shared, "statistic": "no such", "ours": 1.0},
        ]
    )
    found = add_printed(ours, "faithfulness")
    assert found["paper"].tolist()[:2] == [0.8468, 0.7051]
    assert found["meant"].tolist()[:2] == [0.8468, 0.6516]
    assert found["difference"].round(4).tolist()[:2] == [-0.0468, -0.0016]
    assert "swapped" in found["slip"].iloc[1]
    assert pd.isna(found["slip"].iloc[0])
    assert pd.isna(found["paper"].iloc[2])
    assert len(found) == 3


def test_unknown_table_is_refused() -> None:
    with pytest.raises(ArgumentError, match="`table` to be one of faithfulness, .* but got 'table 9'"):
        printed("table 9")
