"""How each table and figure of the paper is made."""

from attree.paper.contents import CONTENTS
from attree.paper.item import Item
from attree.paper.tables import explanation, faithfulness, figures, other_networks, proximity, runtime, settings

_MODULES = (explanation, faithfulness, figures, other_networks, proximity, runtime, settings)
_BY_NAME = {item.name: item for module in _MODULES for item in module.ITEMS}

ITEMS: dict[str, Item] = {name: _BY_NAME[name] for name in CONTENTS}
"""Every item by name, in the order of the paper."""
