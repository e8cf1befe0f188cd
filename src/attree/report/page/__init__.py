"""The interactive page of explanations: one self-contained HTML file, or a notebook widget."""

from attree.report.page.content import page_content
from attree.report.page.live import LiveModel, MissingWidgetError, show
from attree.report.page.write import asset, page_html, write_page

__all__ = ["LiveModel", "MissingWidgetError", "asset", "page_content", "page_html", "show", "write_page"]
