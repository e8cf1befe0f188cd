"""The widget as a notebook gets it, and the refusal where anywidget is not installed."""

from __future__ import annotations

import sys

import pytest

from attree.io.files import json_ready
from attree.report.page import show
from attree.report.page.content import page_content
from attree.report.page.write import asset
from helpers.explained import explained_model


def test_the_widget_holds_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anywidget", reason="the notebook extra is not installed")
    model = explained_model()
    widget = show(model.evaluation, attention=model.attention)
    assert widget.content == json_ready(page_content(model.evaluation, attention=model.attention))
    assert widget._esm == asset("explorer.js")
    assert widget._css == asset("explorer.css")
    assert "content" in widget.keys  # what a notebook sends to the browser


def test_without_anywidget_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ImportError, match="pip install anywidget"):
        show(explained_model().evaluation)
