from __future__ import annotations

from pathlib import Path

import pandas as pd

from attree.paper.report_items import Picture, Report, Table
from attree.paper.run import markdown, write_report
from attree.paper.tables.rows import agreement, over_seeds, with_reasons
from attree.report.style import new_figure


def table() -> Table:
    rows = pd.DataFrame(
        [
            {"dataset": "Cora", "method": "gatt", "statistic": "p_auroc", "ours": 0.9, "spread": 0.01, "paper": 0.91},
            {"dataset": "Cora", "method": "avgatt", "statistic": "p_auroc", "ours": 0.5, "spread": 0.2, "paper": 0.75},
            {"dataset": "PubMed", "method": "gatt", "statistic": "p_auroc", "ours": float("nan"), "paper": 0.99},
        ]
    )
    rows["meant"], rows["changed"] = rows["paper"], [12.0, 500.0, 0.0]
    rows["difference"] = rows["ours"] - rows["meant"]
    rows["slip"] = [float("nan"), "the sign is wrong", float("nan")]
    return Table("one", "A title <b>", rows, ("dataset",), ("method",), notes=("a note",))


def test_markdown_has_ours_the_papers_and_the_difference() -> None:
    lines = markdown(Report("r", "Title", [table()], ["Arxiv is left out."])).splitlines()
    assert "| dataset | GAtt | AvgAtt |" in lines
    assert "| Cora | 0.900 ± 0.010 (0.910, -0.010) n=12 | 0.500 ± 0.200 (0.750†, -0.250) |" in lines
    assert "| PubMed | undefined (0.990) n=0 |  |" in lines
    assert "Arxiv is left out." in lines
    assert "a note" in lines


def test_the_page_is_coloured_by_the_difference_and_escaped(tmp_path: Path) -> None:
    picture = Picture("drawn", "A picture", new_figure(2, 1))
    page = write_report(Report("r", "Title", [table(), picture]), tmp_path).read_text()
    assert '<td class="close">0.900' in page
    assert '<td class="beyond" title="the sign is wrong">0.500' in page
    assert "<td>undefined" in page
    assert "A title &lt;b&gt;" in page
    assert (tmp_path / "r" / "drawn.png").stat().st_size > 0
    assert len(pd.read_csv(tmp_path / "r" / "one.csv")) == 3


def test_far_numbers_get_the_reason_that_the_numbers_tell() -> None:
    shared = {"method": "gatt", "statistic": "pc_pearson", "meant": 0.5, "paper": 0.5, "low": 0.7, "high": 0.9}
    rows = pd.DataFrame(
        [
            {**shared, "ours": 0.54},
            {**shared, "ours": 0.8},
            {**shared, "ours": 0.8, "low": 0.4},
            {**shared, "ours": 0.8, "statistic": "pc_kendall", "noise": 0.45},
            {**shared, "ours": 0.8, "spread": 0.2},
            {**shared, "ours": 0.8, "authors_dpc": 0.52},
            {**shared, "ours": 0.8, "statistic": "p_auroc", "changed": 7.0},
            {**shared, "ours": 0.8, "slip": "the sign is wrong"},
        ]
    )
    rows["difference"] = rows["ours"] - rows["meant"]
    found = with_reasons(rows)
    assert found["reason"].tolist()[:2] == ["", "unexplained"]
    words = [
        "interval over targets",
        "noise in the last digit",
        "standard deviation over seeds",
        "max p - max p'",
        "7 changed",
        "sign is wrong",
    ]
    for reason, word in zip(found["reason"].tolist()[2:], words, strict=True):
        assert word in reason
    assert agreement(found).startswith("1 of 8 numbers (12%) are within 0.05")
    assert "7 differ by more than 0.1; 1 of these are unexplained" in agreement(found)


def test_means_and_spreads_are_over_seeds() -> None:
    rows = pd.DataFrame({"dataset": ["b", "b", "a"], "seed": [0, 1, 0], "ours": [1.0, 3.0, 5.0], "changed": [2, 4, 6]})
    found = over_seeds(rows, ("dataset",))
    assert found["dataset"].tolist() == ["b", "a"]
    assert found["ours"].tolist() == [2.0, 5.0]
    assert round(found["spread"].iloc[0], 4) == 1.4142
    assert pd.isna(found["spread"].iloc[1])
    assert found["changed"].tolist() == [3.0, 6.0]
