"""Graphs, targets, labels, truth and names behind an explanation, from whatever the user has.

A `Source` is the data: from a graph, a list, a data module, a trainer or a finished run. A `Reading` says how a model
is called on it. `ExplainedModel` is a model on a source, ready to be evaluated. None of these imports Lightning.
"""

from attree.source.explained_model import ExplainedModel, Reading, explained_by_user, explained_in_fit, find_subject
from attree.source.source import DiskSource, Drawn, Source, Subset, choose_targets, disk_source_of, source_of
from attree.source.target_labels import TargetLabels, edge_name

__all__ = [
    "DiskSource",
    "Drawn",
    "ExplainedModel",
    "Reading",
    "Source",
    "Subset",
    "TargetLabels",
    "choose_targets",
    "disk_source_of",
    "edge_name",
    "explained_by_user",
    "explained_in_fit",
    "find_subject",
    "source_of",
]
