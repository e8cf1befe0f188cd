"""A page that opens anywhere: explanations to look at, in one HTML file or in a notebook."""

from attree.report.page.widget import show
from attree.report.page.write import write_page

__all__ = ["show", "write_page"]
