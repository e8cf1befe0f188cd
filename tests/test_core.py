"""The core works where Lightning, TensorBoard, OGB and pyarrow are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = ("lightning", "pytorch_lightning", "tensorboard", "ogb", "pyarrow")

CODE = f"""
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT
import attree

graph = Data(x=torch.randn(20, 8), edge_index=torch.randint(0, 20, (2, 60)))
model = GAT(8, 16, 2, out_channels=3)
print(len(attree.evaluate(model, graph, num_targets=3).metrics) > 0)
print("The network predicts" in attree.explain(model, graph, 3).sentence)
print(attree.GAtt().attribute(attree.capture_attention(model, graph.x, graph.edge_index), [3]).targets.tolist())
try:
    from attree.data import Infection
except ModuleNotFoundError as error:
    print(error.name)
"""


@pytest.mark.long
def test_evaluate_and_explain_need_no_lightning() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "[3]", "lightning"]


@pytest.mark.long
def test_folders_are_attributes_of_the_package() -> None:
    code = (
        "import attree, sys; assert 'torch' not in sys.modules; print(attree.models.GAT.__name__, attree.data.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "GAT attree.data\n"), done.stderr
