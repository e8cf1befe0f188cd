"""attree: train attention GNNs and measure, while they train, how well their attention explains them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attree import planted as planted
    from attree.attention import capture_attention
    from attree.attribution import AvgAttExplainer, GAtt, GAttAvgExplainer, GAttExplainer, GAttSimExplainer
    from attree.callbacks import ExplainCallback
    from attree.evaluation import attention_tests, evaluate, stability
    from attree.explanation import explain
    from attree.faithfulness import AttentionGradient, MessageGradient, Occlusion, OcclusionExplainer, reduce_attention
    from attree.penalties import AttentionPenaltyCallback
    from attree.runs import load_run

__version__ = "0.2.0"

__all__ = [
    "AttentionGradient",
    "AttentionPenaltyCallback",
    "AvgAttExplainer",
    "ExplainCallback",
    "GAtt",
    "GAttAvgExplainer",
    "GAttExplainer",
    "GAttSimExplainer",
    "MessageGradient",
    "Occlusion",
    "OcclusionExplainer",
    "attention_tests",
    "capture_attention",
    "evaluate",
    "explain",
    "load_run",
    "reduce_attention",
    "stability",
]

_HOMES = {
    "AttentionGradient": "faithfulness",
    "AttentionPenaltyCallback": "penalties",
    "ExplainCallback": "callbacks",
    "MessageGradient": "faithfulness",
    "Occlusion": "faithfulness",
    "OcclusionExplainer": "faithfulness",
    "attention_tests": "evaluation",
    "capture_attention": "attention",
    "evaluate": "evaluation",
    "explain": "explanation",
    "load_run": "runs",
    "reduce_attention": "faithfulness",
    "stability": "evaluation",
}
"""The subpackage of each name; all other names are in `attree.attribution`."""


def __getattr__(name: str) -> Any:
    """Import a public name, or the module `planted`, on first access, so that `import attree` alone stays fast."""
    if name == "planted":
        return import_module("attree.planted")
    if name in __all__:
        return getattr(import_module(f"attree.{_HOMES.get(name, 'attribution')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "planted"})
