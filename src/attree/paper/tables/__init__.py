"""Every table and figure of the paper, by name."""

from attree.paper.item import Item
from attree.paper.tables import (
    ablation,
    explanation,
    faithfulness,
    figures,
    graph_level,
    heads,
    proximity,
    regularization,
    settings,
    speed,
    supergat,
)

ITEMS: dict[str, Item] = {
    item.name: item
    for items in (
        faithfulness.ITEMS,
        explanation.ITEMS[:1],
        settings.ITEMS[2:],
        ablation.ITEMS,
        figures.ITEMS[1:2],
        figures.ITEMS[3:],
        supergat.ITEMS,
        figures.ITEMS[2:3],
        heads.ITEMS,
        regularization.ITEMS,
        graph_level.ITEMS,
        proximity.ITEMS,
        speed.ITEMS,
        explanation.ITEMS[1:],
        figures.ITEMS[:1],
        settings.ITEMS[:2],
    )
    for item in items
}
"""The items, in the order of the paper."""
