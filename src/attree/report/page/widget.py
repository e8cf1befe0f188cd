"""The page in a notebook: the same module, shown by anywidget."""

from __future__ import annotations

from typing import Any

from attree.errors import AttreeError
from attree.evaluation import Evaluation
from attree.io.files import json_ready
from attree.report.page.content import page_content
from attree.report.page.live import LiveModel
from attree.report.page.write import asset
from attree.subject import Subject


class MissingWidgetError(AttreeError, ImportError):
    """anywidget is not installed."""


def show(evaluation: Evaluation, subject: Subject | None = None, **options: Any) -> Any:
    """Show an evaluation in a notebook, as `write_page` writes it to a file.

    Args:
        evaluation: The result to look at.
        subject: What was explained. With it, edges can be taken out of the graph on the screen, as many as one likes,
            and the model says what it predicts then.
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
    live = None if subject is None else LiveModel(subject, evaluation)
    synced = traitlets.Dict(json_ready(page_content(evaluation, is_live=live is not None, **options))).tag(sync=True)
    names = {"_esm": asset("explorer.js"), "_css": asset("explorer.css"), "content": synced}
    widget = type("ExplorerWidget", (anywidget.AnyWidget,), names)()
    if live is not None:
        widget.on_msg(lambda _, asked, buffers: widget.send(reply(live, asked)))
    return widget


def reply(live: LiveModel, asked: Any) -> dict[str, Any]:
    """The answer to a message of the widget, under the number of the question."""
    number = asked.get("number") if isinstance(asked, dict) else None
    try:
        return {"number": number, **live.answer(asked)}
    except Exception as error:  # said in the notebook, where the question came from
        return {"number": number, "error": str(error)}
