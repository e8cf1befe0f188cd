"""Measure how well attribution methods explain a model.

`evaluate` does it in one call. `Evaluator` does it repeatedly while a model trains, and keeps all that does not change.
Neither imports Lightning or Matplotlib.
"""

from attree.evaluation.attention_tests import AttentionTests, attention_tests
from attree.evaluation.config import EvaluationConfig
from attree.evaluation.evaluate import evaluate
from attree.evaluation.evaluator import Evaluator
from attree.evaluation.metric_names import MetricName
from attree.evaluation.result import Evaluation
from attree.evaluation.stability import Stability, stability
from attree.source import TargetLabels

__all__ = [
    "AttentionTests",
    "Evaluation",
    "EvaluationConfig",
    "Evaluator",
    "MetricName",
    "Stability",
    "TargetLabels",
    "attention_tests",
    "evaluate",
    "stability",
]
