"""attree: train attention GNNs and measure, while they train, how well their attention explains them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attree import attention as attention
    from attree import attribution as attribution
    from attree import callbacks as callbacks
    from attree import data as data
    from attree import evaluation as evaluation
    from attree import explain_run as explain_run
    from attree import explanation as explanation
    from attree import faithfulness as faithfulness
    from attree import metrics as metrics
    from attree import models as models
    from attree import penalties as penalties
    from attree import planted as planted
    from attree import report as report
    from attree import subject as subject
    from attree.attention import capture_attention
    from attree.attribution import AvgAttExplainer, GAtt, GAttAvgExplainer, GAttExplainer, GAttSimExplainer
    from attree.callbacks import ExplainCallback
    from attree.evaluation import attention_tests, evaluate, stability
    from attree.explanation import explain
    from attree.faithfulness import AttentionGradient, MessageGradient, Occlusion, OcclusionExplainer, reduce_attention
    from attree.penalties import AttentionPenaltyCallback
    from attree.runs import load_run

__version__ = "0.3.0"

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

_FOLDERS = (
    *("attention", "attribution", "callbacks", "data", "evaluation", "explain_run", "explanation", "faithfulness"),
    *("metrics", "models", "penalties", "planted", "report", "subject"),
)
"""Folders, and the module `planted`, that `attree.NAME` imports on first access."""

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
    """Import a public name or folder on first access, so that `import attree` alone stays fast."""
    if name in _FOLDERS:
        return import_module(f"attree.{name}")
    if name in __all__:
        return getattr(import_module(f"attree.{_HOMES.get(name, 'attribution')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_FOLDERS})
