"""The subject of an explanation: a call of a model on a graph, the targets of its outputs, and their meaning."""

from attree.subject.head import Head
from attree.subject.model_call import ModelCall
from attree.subject.part import Part
from attree.subject.roots import Roots
from attree.subject.subject import Subject

__all__ = ["Head", "ModelCall", "Part", "Roots", "Subject"]
