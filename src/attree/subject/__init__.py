"""What is explained: a model with its inputs, its looped graph and its attention."""

from attree.subject.head import Head
from attree.subject.inputs import ModelInputs
from attree.subject.subject import Subject

__all__ = ["Head", "ModelInputs", "Subject"]
