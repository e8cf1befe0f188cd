"""Wrong values for every argument of the public functions and classes end in a sentence that names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT as PyGGAT

import attree
from attree import attribution, data, evaluation, faithfulness, metrics, models
from attree.attention import Graph, capture_attention
from attree.attribution import AvgAtt, GAtt, subgraph_pairs
from attree.data import GroundTruth
from attree.errors import AttreeError, MissingDataError
from attree.evaluation import Evaluation, EvaluationConfig
from attree.metrics import functional
from attree.report.page import write_page
from attree.subject import Subject
from helpers.graphs import NODES, messy_graph, randomize

NAN = float("nan")
WRONG: tuple[Any, ...] = (None, "a", 1.5, True, -1, NAN, [], [None], {}, object())
"""What is thrown at an argument, unless it is named as fine there."""


def small_graph(**changes: Any) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, 5, generator=generator)
    return Data(**{"x": x, "edge_index": messy_graph(0), "y": torch.arange(NODES) % 3, **changes})


def small_model() -> torch.nn.Module:
    return randomize(PyGGAT(5, 8, 2, out_channels=3), 1)


@dataclass
class Call:
    """A public function or class with arguments that are right, and values that are fine although they look odd.

    Attributes:
        function: What is called.
        right: Arguments that are right.
        fine: By argument, those of `WRONG` that are right too.
        untested: Arguments of the model's own, callbacks and the like, which take anything.
    """

    function: Callable[..., Any]
    right: dict[str, Any] = field(default_factory=dict)
    fine: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    untested: tuple[str, ...] = ()


TRAINED: dict[str, tuple[Any, ...]] = {"lr": (1.5,), "weight_decay": (1.5,), "penalties": (None, [], {})}
NONE = (None,)
GRAPH, MODEL = small_graph(), small_model()
LOOPED = Graph(GRAPH.edge_index, NODES)
SUBJECT = Subject.of_data(MODEL, GRAPH)
ATTENTION = capture_attention(MODEL, GRAPH.x, GRAPH.edge_index)
PAIRS = subgraph_pairs(LOOPED, [0, 1], 2)
TRUTH = GroundTruth(torch.tensor([0]), GRAPH.edge_index[:, :1])
RESULT = GAtt().attribute(ATTENTION, [0, 1])
COLUMN = torch.arange(6.0)
MASKED = small_graph(
    **{f"{part}_mask": torch.arange(NODES) % 3 == k for k, part in enumerate(("train", "val", "test"))}
)
GRAPHS = [Data(x=torch.ones(3, 2), edge_index=messy_graph(0) % 3, y=torch.tensor([k % 2])) for k in range(20)]
OF_MODEL = {"model": MODEL, "x": GRAPH.x, "edge_index": GRAPH.edge_index}

CALLS = {
    "evaluate": Call(
        attree.evaluate,
        {"model": MODEL, "data": GRAPH, "targets": [0], "methods": ["gatt"], "protocols": ["removal"], "seed": 0},
        {
            "targets": (None,),
            "num_targets": NONE,
            "methods": NONE,
            "node_type": NONE,
            "sets": (True,),
            "models": ([],),
            "protocols": ([],),
            "truth": NONE,
            "mode": NONE,
            "return_type": NONE,
            "label": NONE,
            "readout": NONE,
            "call": NONE,
            "level": NONE,
            "progress": NONE,
        },
    ),
    "Evaluator": Call(
        evaluation.Evaluator,
        {"subject": SUBJECT, "targets": [0], "config": EvaluationConfig(methods=["gatt"], protocols=["removal"])},
        {"targets": ([],), "config": NONE, "truth": NONE, "labels": NONE, "shard": NONE, "warn": (True,)},
    ),
    "Evaluation.load": Call(Evaluation.load, {"folder": "nowhere"}),
    "capture_attention": Call(attree.capture_attention, OF_MODEL, {"graph": NONE, "wiring": NONE, "grad": (True,)}),
    "reduce_attention": Call(
        attree.reduce_attention,
        {**OF_MODEL, "pairs": PAIRS, "protocol": "removal"},
        {"graph": NONE, "head": NONE, "with_probability": (True,), "progress": NONE, "node_type": NONE},
    ),
    "delete_edges": Call(
        faithfulness.delete_edges,
        {"subject": SUBJECT, "pairs": PAIRS, "scores": {"a": torch.ones(len(PAIRS))}, "counts": [0, 1]},
        {"scores": ({},)},
    ),
    "ReductionProtocol": Call(
        faithfulness.ReductionProtocol,
        {"name": "mine", "meaning": "something"},
        {
            "name": ("a",),
            "meaning": ("a",),
            **dict.fromkeys(("score_factor", "score_shift", "weight_factor"), (1.5, -1)),
        },
    ),
    "load_run": Call(attree.load_run, {"path": "nowhere"}),
    "GAtt": Call(GAtt, {}, {"heads": (None, [])}),
    "AvgAtt": Call(AvgAtt, {}, {"heads": (None, [])}),
    "Random": Call(attribution.Random, {}, {"heads": (None, [])}),
    "GAttExplainer": Call(
        attree.GAttExplainer,
        {},
        {"heads": (None, []), "readout": NONE, "normalize": (True,), "node_type": (None, "a"), "method": NONE},
    ),
    "attribute": Call(GAtt().attribute, {"subject": ATTENTION}, {"targets": ([],), "memory": (1.5,)}),
    "make_methods": Call(attribution.make_methods, {"methods": ["gatt"]}, {"heads": (None, [])}),
    "ComputationTree": Call(
        attribution.ComputationTree, {"attention": ATTENTION, "target": 0}, {"heads": NONE, "prune": (True,)}
    ),
    "subgraph_pairs": Call(
        attribution.subgraph_pairs,
        {"graph": LOOPED, "targets": [0], "num_layers": 2},
        {"targets": ([],), "memory": (1.5,)},
    ),
    "graph_pairs": Call(attribution.graph_pairs, {"graph": LOOPED, "batch": torch.zeros(NODES, dtype=torch.int64)}),
    "attribute_subgraphs": Call(
        attribution.attribute_subgraphs,
        {"method": GAtt(), **OF_MODEL, "targets": [0]},
        {"targets": ([],), "num_layers": NONE, "memory": (1.5,), "progress": (True,)},
    ),
    "Attribution.load": Call(attribution.Attribution.load, {"path": "nowhere"}, {}, ("max_nodes",)),
    "Attribution.dense": Call(RESULT.dense, {"target": 0}),
    "Attribution.concat": Call(attribution.Attribution.concat, {"parts": [RESULT]}),
    **{
        name: Call(getattr(attribution, name), {}, fine)
        for name, fine in {
            "Saliency": {"absolute": (True,), "self_loops": (True,)},
            "IntegratedGradients": {"self_loops": (True,)},
            "GNNExplainer": {
                "lr": (1.5,),
                "edge_size": (1.5,),
                "edge_ent": (1.5,),
                "feature_mask": (True,),
                "self_loops": (True,),
            },
            "PGExplainer": {"lr": (1.5,), "edge_size": (1.5,), "edge_ent": (1.5,), "self_loops": (True,)},
            "GraphMask": dict.fromkeys(("lr", "penalty_scaling", "allowance", "init_lambda", "lambda_lr"), (1.5,)),
            "FastDnX": {"lr": (1.5,), "weight_decay": (1.5,)},
        }.items()
    },
    "GroundTruth": Call(GroundTruth, {"targets": TRUTH.targets, "edges": TRUTH.edges}, {"ptr": NONE}),
    "NodeDataModule.from_data": Call(
        data.NodeDataModule.from_data,
        {"data": MASKED},
        {"truth": NONE, "num_classes": NONE, "name": ("a",), "split_seed": NONE},
        ("sampling",),
    ),
    "GraphDataModule.from_graphs": Call(
        data.GraphDataModule.from_graphs, {"graphs": GRAPHS}, {"num_classes": NONE, "name": ("a",)}, ("split",)
    ),
    "Infection": Call(
        data.Infection, {}, {"num_infected": NONE, "root": (None, "a"), "any_depth": (True,)}, ("sampling",)
    ),
    "BAShapes": Call(data.BAShapes, {}, {"root": (None, "a")}, ("sampling",)),
    "Planetoid": Call(data.Planetoid, {}, {"root": (None, "a"), "normalize_features": (True,)}, ("sampling",)),
    "WebKB": Call(data.WebKB, {}, {"root": (None, "a")}, ("sampling",)),
    "Arxiv": Call(data.Arxiv, {}, {"root": (None, "a"), "symmetrize": (True,)}, ("sampling",)),
    "MUTAG": Call(data.MUTAG, {}, {"root": (None, "a")}),
    "HIN": Call(data.HIN, {}, {"root": (None, "a")}),
    **{
        name: Call(
            getattr(models, name),
            {"in_channels": 4, "out_channels": 3},
            {
                "concat": (True,),
                "bias": (True,),
                "last_heads": NONE,
                "attention_loss_weight": (1.5,),
                "neg_sample_ratio": (1.5,),
            },
        )
        for name in ("GAT", "GATv2", "SuperGAT")
    },
    "NodeClassifier": Call(models.NodeClassifier, {"net": models.GAT(4, 3)}, TRAINED),
    "GraphClassifier": Call(models.GraphClassifier, {"net": models.GAT(4, 3)}, {**TRAINED, "bias": (True,)}),
    **{
        name: Call(getattr(functional, name), {arguments[0]: COLUMN, arguments[1]: COLUMN > 2})
        for name, arguments in {
            "pearson": ("x", "y"),
            "spearman": ("x", "y"),
            "kendall": ("x", "y"),
            "auroc": ("scores", "labels"),
        }.items()
    },
    "faithfulness_statistics": Call(
        functional.faithfulness_statistics,
        {"scores": COLUMN, "delta_pc": COLUMN, "delta_ne": COLUMN, "changed": COLUMN > 2},
    ),
    **{
        f"{name}.update": Call(getattr(metrics, name)().update, {"scores": COLUMN, "target": COLUMN > 2})
        for name in ("Pearson", "Spearman", "Kendall", "AUROC")
    },
    "TruthAUROC.update": Call(metrics.TruthAUROC().update, {"scores": COLUMN, "labels": COLUMN > 2}, {}, ("target",)),
    "Faithfulness.update": Call(
        metrics.Faithfulness().update,
        {"scores": COLUMN, "delta_pc": COLUMN, "delta_ne": COLUMN, "changed": COLUMN > 2},
    ),
}


def cases() -> list[Any]:
    found = []
    for name, call in CALLS.items():
        parameters = [*inspect.signature(call.function).parameters, *call.right]
        for argument in dict.fromkeys(parameters):
            if argument not in ("args", "kwargs", *call.untested):
                found.append(pytest.param(call, argument, id=f"{name}-{argument}"))
    return found


@pytest.mark.parametrize(("call", "argument"), cases())
@pytest.mark.filterwarnings("ignore")
def test_wrong_values_are_refused_by_name(call: Call, argument: str) -> None:
    fine = call.fine.get(argument, ())
    surprises = []
    for value in WRONG:
        arguments = {**call.right, argument: value}
        is_fine = any(value is one or (type(value) is type(one) and value == one) for one in fine)
        came = _outcome(call.function, arguments, argument)
        if came != ("taken" if is_fine else "refused"):
            surprises.append(f"{argument}={value!r}: {came}")
    assert not surprises, "; ".join(surprises)


def _outcome(function: Callable[..., Any], arguments: dict[str, Any], argument: str) -> str:
    try:
        made = function(**arguments)
        if isinstance(made, Iterator):
            list(made)
    except AttreeError as error:
        said = str(error)
        named = f"`{argument}" in said or "heterogeneous" in said  # a dict of tensors is not one graph's
        named = named or isinstance(error, MissingDataError)  # which names the folder
        return "refused" if named else f"refused without its name: {said}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"x": GRAPH.x[:, :3]}, "x"),
        ({"x": GRAPH.x.double()}, "x"),
        ({"x": GRAPH.x.long()}, "x"),
        ({"x": GRAPH.x.masked_fill(GRAPH.x > 1, NAN)}, "x"),
        ({"x": GRAPH.x[:4]}, "edge_index"),
        ({"edge_index": GRAPH.edge_index.float()}, "edge_index"),
        ({"edge_index": GRAPH.edge_index[0]}, "edge_index"),
        ({"edge_index": GRAPH.edge_index - 1}, "edge_index"),
    ],
)
def test_graphs_that_do_not_fit_the_model(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(AttreeError, match=f"`(data.)?{named}`"):
        attree.evaluate(MODEL, small_graph(**changes), [0])
    if named == "x" and bool(changes["x"].isnan().any()):
        return  # attention of NaN is NaN: only what is measured needs numbers
    with pytest.raises(AttreeError, match=f"`{named}`"):
        attree.capture_attention(MODEL, **{"x": GRAPH.x, "edge_index": GRAPH.edge_index, **changes})


@pytest.mark.parametrize("argument", ["title", "predictions", "true_classes", "class_names", "node_names", "truth"])
def test_what_a_page_is_told(argument: str, tmp_path: Path) -> None:
    result = attree.evaluate(MODEL, GRAPH, [0, 1], "gatt")
    for value in (1.5, -1, [None], object()):
        with pytest.raises(AttreeError, match=f"`{argument}`"):
            write_page(tmp_path / "page.html", result, **{argument: value})
