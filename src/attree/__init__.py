"""attree: train attention GNNs and measure, while they train, how well their attention explains them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attree.attribution import AvgAttExplainer, GAttAvgExplainer, GAttExplainer, GAttSimExplainer

__version__ = "0.1.0"

__all__ = ["AvgAttExplainer", "GAttAvgExplainer", "GAttExplainer", "GAttSimExplainer"]


def __getattr__(name: str) -> Any:
    """Import the explainers when first asked for, so that `import attree` alone stays quick."""
    if name in __all__:
        from attree import attribution

        return getattr(attribution, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
