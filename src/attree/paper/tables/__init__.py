"""The tables and figures of the paper: the cells that each needs, and how it is made from their results."""

from attree.paper.command import CONTENTS
from attree.paper.report_items import Item
from attree.paper.tables import datasets, explanation, faithfulness, figures, other_networks

_MODULES = (datasets, explanation, faithfulness, figures, other_networks)
_BY_NAME = {item.name: item for module in _MODULES for item in module.ITEMS}

ITEMS: dict[str, Item] = {name: _BY_NAME[name] for name in CONTENTS}
"""Every item by name, in the order of the paper."""
