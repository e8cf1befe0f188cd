"""The Python of the documentation runs as it stands, and what it links to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def test_the_callback_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "callback.md").read_text(), flags=re.S)
    assert len(re.findall(r"# \d", block)) <= 5
    names: dict[str, object] = {"__name__": "callback_page"}
    exec(block, names)
    (run,) = (tmp_path / "lightning_logs").iterdir()
    assert "explain/gatt/weight/faithfulness" in (run / "metrics.json").read_text()
    assert (run / "explanations" / "gatt.npz").is_file()


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", page.read_text()):
        assert (page.parent / link).exists(), link
