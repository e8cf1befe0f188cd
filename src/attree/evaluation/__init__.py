"""How well do these methods explain this model on these targets?

`evaluate` is one call; `Evaluator` is the same for a model that trains, with all kept that does not change. Both know
neither Lightning nor Matplotlib.
"""

from attree.evaluation.attention_tests import attention_tests
from attree.evaluation.attention_tests_result import AttentionTests
from attree.evaluation.config import EvaluationConfig
from attree.evaluation.evaluate import evaluate
from attree.evaluation.evaluator import Evaluator
from attree.evaluation.names import MetricName
from attree.evaluation.result import Evaluation
from attree.evaluation.target_labels import TargetLabels

__all__ = [
    "AttentionTests",
    "Evaluation",
    "EvaluationConfig",
    "Evaluator",
    "MetricName",
    "TargetLabels",
    "attention_tests",
    "evaluate",
]
