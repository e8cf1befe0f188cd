"""The interactive page of explanations: one self-contained HTML file, or a notebook widget."""

from attree.report.page.live import MissingWidgetError, show
from attree.report.page.write import write_page

__all__ = ["MissingWidgetError", "show", "write_page"]
