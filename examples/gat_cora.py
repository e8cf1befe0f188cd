"""Train a GAT on Cora and watch how well its attention explains it: `python examples/gat_cora.py [DATA_FOLDER]`.

The steps are those of `attree fit --config cora`, with other settings. Cora is downloaded if it is not in DATA_FOLDER
(default: `data`).
"""

from __future__ import annotations

import sys

from lightning import Trainer, seed_everything

import attree
from attree.data import Planetoid
from attree.evaluation import Evaluation
from attree.models import GAT, NodeClassifier


def main(root: str = "data", epochs: int = 100) -> Evaluation:
    """Train, then print how well three methods explain the trained network on 100 random nodes."""
    seed_everything(0, verbose=False)
    data = Planetoid("Cora", root=root)
    net = GAT(data.num_features, data.num_classes, hidden_channels=8, heads=8, num_layers=2, dropout=0.6)
    module = NodeClassifier(net, lr=0.005, weight_decay=5e-4)
    callback = attree.ExplainCallback(protocols=["weight", "removal"], every_n_epochs=10)
    trainer = Trainer(max_epochs=epochs, callbacks=[callback], enable_checkpointing=False)
    trainer.fit(module, datamodule=data)
    result = attree.evaluate(net, data.graph, num_targets=100)
    print(result)
    return result


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
