"""The numbers of docs/concepts/faq.md: what lies behind results that surprise people.

    python benchmarks/questions.py                     all tables, 3 seeds of a GAT on each dataset
    python benchmarks/questions.py --datasets Cora --lr 0.001     one dataset, trained at the paper's rate

The nets are trained as benchmarks/trust.py trains them. For each net, trained and as initialised:

- effect and size: Pearson and Kendall of GAtt and AvgAtt with the effect of an edge, and with its absolute value. If a
  method predicts sizes but not effects, what it lacks is the sign. "With a flow": among the edges that can reach the
  target at all; the others have neither score nor effect, and agree by that alone.
- negative: share of the edges with an effect that make the prediction surer by leaving.
- temperature: Pearson of GAtt under `weight`, when the net's logits are divided by a number before softmax. This
  changes nothing but how sure the net is.
- uniform: mean total variation between the attention of a node and uniform attention, and what predictions do with the
  latter.
"""

from __future__ import annotations

import argparse
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.utils import degree

import attree
from attree.faithfulness import reduce_attention
from attree.metrics.functional import kendall, pearson
from attree.subject import Subject
from trust import SETTINGS, chosen_targets, trained

TEMPERATURES = (1, 3, 10, 30)
PROTOCOLS = ("weight", "removal")


class Tempered(nn.Module):
    """A net whose logits are divided by a temperature."""

    def __init__(self, net: nn.Module, temperature: float) -> None:
        super().__init__()
        self.net, self.temperature = net, temperature

    def forward(self, *arguments: Tensor) -> Tensor:
        """Logits that are nearer to one another."""
        out: Tensor = self.net(*arguments)
        return out / self.temperature


def from_uniform(subject: Subject) -> float:
    """Mean total variation between attention and uniform attention, over layers, heads and nodes with several edges."""
    destination = subject.graph.destination
    count = degree(destination, subject.graph.num_nodes)
    distances = []
    for weights in subject.attention.weights:
        off = (weights - 1 / count[destination].unsqueeze(1)).abs() / 2
        distances.append(off.new_zeros(count.numel(), off.shape[1]).index_add(0, destination, off)[count > 1].mean())
    return float(torch.stack(distances).mean())


def measured(dataset: str, seed: int, epochs: int | None, root: str, targets: int) -> dict[str, Any]:
    """One net in numbers."""
    model, data, truth, accuracy = trained(dataset, "GAT", seed, root, epochs)
    subject, targets_to_explain = chosen_targets(model, data, truth, targets)
    result = attree.evaluate(model, subject, targets_to_explain, ("gatt", "uniform", "avgatt"), PROTOCOLS)
    gatt, avgatt = result.pair_scores["gatt"], result.pair_scores["avgatt"]
    assert result.predictions is not None
    row: dict[str, Any] = {"accuracy": accuracy, "sureness": float(result.predictions.amax(dim=-1).mean())}
    row["faithfulness"] = result.metrics["explain/gatt/weight/faithfulness"]
    for protocol in PROTOCOLS:
        effect = result.reductions[protocol].delta_pc
        row[f"{protocol}: mean size"] = float(effect.abs().mean())
        row[f"{protocol}: negative"] = float((effect < -1e-9).sum() / (effect.abs() > 1e-9).sum())
        for label, scores in (("GAtt", gatt), ("AvgAtt", avgatt)):
            row[f"{protocol}: {label} Pearson, effect"] = float(pearson(scores, effect))
            row[f"{protocol}: {label} Pearson, size"] = float(pearson(scores, effect.abs()))
            row[f"{protocol}: {label} Kendall, effect"] = float(kendall(scores, effect))
            row[f"{protocol}: {label} Kendall, size"] = float(kendall(scores, effect.abs()))
        flows = gatt > 0
        row[f"{protocol}: GAtt Kendall, effect, with a flow"] = float(kendall(gatt[flows], effect[flows]))
        row[f"{protocol}: GAtt Kendall, size, with a flow"] = float(kendall(gatt[flows], effect[flows].abs()))
    first_deltas, second_deltas = (result.reductions[protocol].delta_pc for protocol in PROTOCOLS)
    row["effects: Pearson of protocols"] = float(pearson(first_deltas, second_deltas))
    batch = (data.batch,) if isinstance(data, Batch) else ()
    for temperature in TEMPERATURES:
        softer = Tempered(model, temperature)
        effect = reduce_attention(softer, data.x, data.edge_index, result.pairs, "weight", *batch).delta_pc
        row[f"temperature {temperature}"] = float(pearson(gatt, effect))
    row["attention from uniform"] = from_uniform(subject)
    row["uniform: gain of GAtt"] = row["weight: GAtt Pearson, effect"] - float(
        pearson(result.pair_scores["uniform"], first_deltas)
    )
    test = attree.attention_tests(model, subject, targets_to_explain).uniform
    row["uniform: predictions moved"], row["uniform: classes changed"] = test.distance, test.changed
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="Cora,Infection,MUTAG")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--targets", type=int, default=100)
    parser.add_argument("--root", default="data")
    parser.add_argument("--lr", type=float, default=None, help="another learning rate (the paper's for Cora: 0.001)")
    arguments = parser.parse_args()
    if arguments.lr is not None:
        SETTINGS.update({name: setting._replace(lr=arguments.lr) for name, setting in SETTINGS.items()})
    rows = {
        (dataset, state, seed): measured(dataset, seed, epochs, arguments.root, arguments.targets)
        for dataset in arguments.datasets.split(",")
        for state, epochs in (("initialised", 0), ("trained", None))
        for seed in range(arguments.seeds)
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    by_net = table.groupby(level=[0, 1], sort=False)
    cells = {
        name: [f"{mean:.3f} ± {std:.3f}" for mean, std in zip(by_net.mean()[name], by_net.std()[name], strict=True)]
        for name in table
    }
    print(pd.DataFrame(cells, index=by_net.mean().index).T.to_string())


if __name__ == "__main__":
    main()
