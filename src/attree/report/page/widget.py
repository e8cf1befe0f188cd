"""The page in a notebook: the same module, shown by anywidget."""

from __future__ import annotations

from typing import Any

from attree.errors import AttreeError
from attree.evaluation import Evaluation
from attree.io.plain_json import plain
from attree.report.page.content import page_content
from attree.report.page.write import asset


class MissingWidgetError(AttreeError, ImportError):
    """anywidget is not installed."""


def show(evaluation: Evaluation, **options: Any) -> Any:
    """Show an evaluation in a notebook, as `write_page` writes it to a file.

    Args:
        evaluation: The result to look at.
        **options: As those of `write_page`: `attention`, `predictions`, `truth`, ...

    Returns:
        The widget, which a notebook displays.

    Raises:
        MissingWidgetError: anywidget is not installed.
    """
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise MissingWidgetError("The notebook widget needs anywidget: pip install 'attree[notebook]'.") from error
    synced = traitlets.Dict(plain(page_content(evaluation, **options))).tag(sync=True)
    names = {"_esm": asset("explorer.js"), "_css": asset("explorer.css"), "content": synced}
    return type("ExplorerWidget", (anywidget.AnyWidget,), names)()
