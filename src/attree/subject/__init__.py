"""The subject of an explanation: a call of a model on a graph, the targets of its outputs, and their meaning."""

from attree.subject.graph_part import Part
from attree.subject.head import Head
from attree.subject.model_call import ModelCall
from attree.subject.subject import Subject
from attree.subject.target_roots import Roots

__all__ = ["Head", "ModelCall", "Part", "Roots", "Subject"]
