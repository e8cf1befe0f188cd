"""Every table and figure of the paper, by name."""

from attree.paper.item import Item
from attree.paper.tables import explanation, faithfulness, figures, other_networks, proximity, runtime, settings

MODULES = (explanation, faithfulness, figures, other_networks, proximity, runtime, settings)

ORDER = (
    *("faithfulness", "faithfulness_gat", "faithfulness_gatv2", "explanation", "properties", "ablation"),
    *("ablation_full", "case_studies", "trees", "supergat", "supergat_cases", "multihead", "head_selection"),
    *("regularization", "graph_level", "proximity", "runtime_gatt", "runtime", "accuracy_runtime", "histograms"),
    *("datasets", "training"),
)
"""Names of the items, in the order of the paper."""

_BY_NAME: dict[str, Item] = {item.name: item for module in MODULES for item in module.ITEMS}

ITEMS: dict[str, Item] = {name: _BY_NAME.pop(name) for name in ORDER} | _BY_NAME
"""The items, in the order of the paper; one that `ORDER` does not name comes last."""
