"""The list of all numbers, recorded texts and pictures that README and docs show, each with the command that makes it.

`MEASUREMENTS` is the one place: `benchmarks/measure.py` runs what is missing or old, and tests/test_numbers.py holds
README and docs to the list. A measurement is one or more commands, run one after the other in a folder of their own, in
which `data`, `docs`, `benchmarks`, `configs` and `examples` are links to the repository's.

A block of a page stands between `<!-- numbers: NAME -->` and `<!-- end -->`. Its text is cut out of what the commands
print or write. Where that is not possible, it is written by hand (`BY_HAND`) from what they print.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sweep_tables import networks_table, penalties_table, study_table


class Output(NamedTuple):
    """What the commands of a measurement left.

    Attributes:
        printed: Standard output of each command.
        folder: The folder in which they ran.
    """

    printed: tuple[str, ...]
    folder: Path


Text = Callable[[Output], list[str]]
"""Returns the texts of a block: one, or, where a page repeats the name of a block, one for each time."""


class Block(NamedTuple):
    """A block of a page.

    Attributes:
        pages: Pages relative to docs, without suffix, or README.
        text: Returns its texts; None if they are written by hand.
        dated: Whether a line below it says when it was measured. Recorded texts that the tests hold to this version
            need none.
    """

    pages: tuple[str, ...]
    text: Text | None
    dated: bool = True


@dataclass(frozen=True)
class Measurement:
    """Commands, and what README and docs show of them.

    Attributes:
        name: Its name.
        commands: What is typed in the repository.
        minutes: How long it took, roughly, on two cores.
        blocks: Its blocks by name.
        files: Files of the repository that it makes, with their places in the folder in which the commands run.
        timed: Whether it measures time or memory, so that it needs a quiet machine.
        quick: Commands of the quick run. The measurement's own commands must give the stored texts to the last digit;
            shorter ones must give texts of the same form. None: it is left out of the quick run.
        inputs: Files besides those that the commands name, on which the result depends.
    """

    name: str
    commands: tuple[str, ...]
    minutes: float
    blocks: Mapping[str, Block] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    timed: bool = False
    quick: tuple[str, ...] | None = None
    inputs: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether the quick run compares its texts with the stored ones to the last digit."""
        return self.quick == self.commands


TABLE = re.compile(r"(?:^\|.*\n)+", flags=re.MULTILINE)


def table(place: int = 0, command: int = -1) -> Text:
    """The table at this place among those that a command prints."""
    return lambda output: [f"\n{TABLE.findall(output.printed[command])[place]}\n"]


def table_below(line: str, command: int = -1) -> Text:
    """The first table below a line that contains this text."""

    def cut(output: Output) -> list[str]:
        _, _, below = output.printed[command].partition(line)
        return [f"\n{TABLE.findall(below)[0]}\n"]

    return cut


def section(heading: str) -> Text:
    """What a command prints from a heading up to the next one, the end of the heading first."""

    def cut(output: Output) -> list[str]:
        _, _, below = output.printed[-1].partition(f"### {heading}: ")
        text = below.partition("### ")[0].strip()
        return [f"\n{text[:1].upper()}{text[1:]}\n\n"]

    return cut


def paragraphs(above: str, until: str) -> Text:
    """What a command prints between two lines, without them."""
    return lambda output: [f"\n{output.printed[-1].partition(above)[2].partition(until)[0].strip()}\n\n"]


def report_table(item: str, place: int = 0) -> Text:
    """A table of the report that `attree paper` writes."""
    return lambda output: [
        "\n" + TABLE.findall((output.folder / "logs" / "paper" / item / "report.md").read_text())[place] + "\n"
    ]


def first_lines(count: int) -> Text:
    """The first lines that the last command prints, in a fence."""
    return lambda output: ["\n".join(["```", *output.printed[-1].splitlines()[:count], "...", "```", ""])]


def end_of_fit(output: Output) -> list[str]:
    """The summary at the end of `attree fit`: from the verdict up to the last line of numbers."""
    lines = output.printed[0].splitlines()
    start = max(number for number, line in enumerate(lines) if line.startswith("Use "))
    end = max(number for number, line in enumerate(lines) if line.startswith("train/loss"))
    text = "\n".join(line.rstrip() for line in lines[start : end + 1])
    return [f"```\n{text}\n```\n"]


def recorded(output: Output) -> list[str]:
    """What the Python blocks of a page print, as docs/_generate/recorded.py separates it."""
    return [f"```text\n{text}```\n" for text in output.printed[-1].split("\f") if text.strip()]


def sweep_table(name: str, make: Callable[[Path], str]) -> Text:
    """A table made of the results of a sweep."""
    return lambda output: [f"\n{make(output.folder / 'logs' / 'sweeps' / name / 'results.csv')}\n"]


BY_HAND = None
"""The text of a block that a person writes from what the commands print: `measure.py --take` stores it."""


def _blocks(page: str, **texts: Text | None) -> dict[str, Block]:
    return {name: Block((page,), text) for name, text in texts.items()}


def _paper(name: str, item: str, minutes: float, arguments: str = "", **more: Text | None) -> Measurement:
    """A table of the paper's reproduction."""
    blocks = more or {f"reproduction_{name}": report_table(item)}
    return Measurement(
        f"paper_{name}", (f"attree paper {item}{arguments}",), minutes, _blocks("lab/reproduction", **blocks)
    )


def _sweep(name: str, minutes: float, blocks: Mapping[str, Block], **figures: str) -> Measurement:
    """A sweep and its figures: the name in docs/images, and the file of the sweep's folder."""
    files = {f"docs/images/{image}.png": f"logs/sweeps/{name}/{figure}.png" for image, figure in figures.items()}
    return Measurement(name, (f"attree sweep {name}",), minutes, blocks, files)


DATASETS = ("Cora", "Infection", "BA-Shapes", "Texas", "MUTAG")
VERDICTS = "python benchmarks/trust.py --verdicts --targets 100 --nets GAT --datasets " + ",".join(DATASETS)
METHODS = ("Cora", "Texas", "Infection", "BA-Shapes", "MUTAG", "CiteSeer", "PubMed", "Wisconsin", "Cornell")
TRUST = tuple(
    f"python benchmarks/trust.py --out trust.csv {what}".strip() for what in ("--seeds 3", "--passes", "--table")
)
CANDIDATES = (
    "python benchmarks/trust.py --candidates --seeds 1 --out candidates.csv --datasets Texas,Cora,Infection,BA-Shapes "
    '--nets "GAT;PyG GAT, residual"',
    "python benchmarks/trust.py --out candidates.csv --table",
)
DEMO = (
    "attree fit --config infection",
    "python -c \"import attree; run = attree.load_run('logs/infection/version_0'); "
    'print(attree.explain(run.net, run, 142))"',
)
PLANTED = "python benchmarks/planted.py"
MODELS = "python docs/_generate/models.py"
TUTORIAL = "python docs/_generate/recorded.py tutorial"
SINGLE = "nice -n 15 python benchmarks/single_predictions.py"


PAGE_PICTURES = ("dark", "hub", "light", "molecule", "narrow", "types")


def _small(name: str) -> str:
    return name.lower().replace("-", "_")


MEASUREMENTS = (
    # Exact and short: the quick run repeats them to the last digit.
    Measurement(
        "demo",
        DEMO,
        3,
        {
            "demo": Block(("how_to/command_line", "README"), end_of_fit, dated=False),
            "explain_142": Block(("README",), first_lines(8), dated=False),
        },
        quick=DEMO,
    ),
    Measurement(
        "animation",
        (DEMO[0], "python docs/_generate/animation.py logs/infection/version_0 taking_edges_out.gif"),
        4,
        files={"docs/images/taking_edges_out.gif": "taking_edges_out.gif"},
    ),
    Measurement(
        "tutorial",
        (TUTORIAL,),
        1,
        {"tutorial": Block(("tutorial",), recorded, dated=False)},
        {"docs/images/tutorial_node42.png": "node42.png"},
        quick=(TUTORIAL,),
        inputs=("docs/tutorial.md",),
    ),
    Measurement(
        "which_models_work",
        (MODELS,),
        1,
        _blocks("reference/which_models_work", which_models_work=table()),
        quick=(MODELS,),
    ),
    Measurement(
        "planted",
        (PLANTED,),
        1,
        _blocks(
            "lab/planted",
            planted_cases=table(0),
            planted_verdicts=paragraphs("by default methods:\n", "\nTrue edges"),
            planted_truth=table(1),
            planted_removal=table(2),
            planted_weight=table(3),
        ),
        quick=(PLANTED,),
    ),
    Measurement(
        "verdicts",
        (VERDICTS,),
        5,
        _blocks("lab/verdicts", **{f"verdicts_{_small(name)}": section(f"{name}, GAT") for name in DATASETS}),
        quick=(VERDICTS,),
    ),
    Measurement(
        "questions",
        ("python benchmarks/questions.py",),
        10,
        _blocks("concepts/faq", questions_signs=BY_HAND),
        quick=("python benchmarks/questions.py --datasets MUTAG --seeds 1 --targets 10",),
    ),
    Measurement(
        "graph_transformers",
        ("attree fit --config mutag_gps", "attree fit --config cora_sgformer"),
        5,
        _blocks("how_to/graph_transformers", graph_transformers=BY_HAND),
    ),
    Measurement(
        "networks",
        (
            *(f"attree fit --config cora --model.net {net}" for net in ("GAT", "GCN", "SAGE", "GIN")),
            "attree fit --config cora_sgformer",
            *(f"attree fit --config mutag --model.net {net}" for net in ("GAT", "GCN", "SAGE", "GIN")),
            "attree fit --config mutag_gps",
            "attree fit --config mutag_gps --model.net SGFormer",
            "attree fit --config molecules_gps",
        ),
        10,
        _blocks("lab/networks", networks=BY_HAND),
    ),
    Measurement(
        "streaming_graphs",
        ("python benchmarks/reduction.py --graphs updates",),
        2,
        _blocks("lab/runtime", streaming_graphs=table()),
        timed=True,
    ),
    Measurement(
        "graph_transformer_speed",
        ("python benchmarks/graph_transformers.py",),
        1,
        _blocks("how_to/graph_transformers", graph_transformer_speed=table()),
        timed=True,
    ),
    Measurement(
        "heterogeneous",
        tuple(f"attree fit --config {name}" for name in ("hetero_infection", "cora_links", "acm", "dblp")),
        15,
        _blocks("how_to/heterogeneous", heterogeneous_accuracy=BY_HAND, heterogeneous_faithfulness=BY_HAND),
    ),
    # Studies.
    Measurement(
        "single_predictions",
        (SINGLE, f"{SINGLE} --tables"),
        240,
        {
            **_blocks(
                "lab/single_predictions",
                single_predictions_removal=table_below("## Under `removal`, by dataset"),
                single_predictions_weight=table_below("## Under `weight`, by dataset"),
                single_predictions_better_removal=table_below("## Under `removal`: networks"),
                single_predictions_better_weight=table_below("## Under `weight`: networks"),
            ),
            **_blocks("lab/reproduction", single_predictions_by_network=table_below("## By network")),
        },
        # The command writes these two into docs by itself.
        {name: name for name in ("docs/lab/single_predictions.csv", "docs/images/single_predictions.png")},
    ),
    Measurement(
        "methods",
        TRUST,
        600,
        _blocks("lab/methods", **{f"methods_{_small(name)}": table_below(f"## {name}\n") for name in METHODS}),
        timed=True,
    ),
    Measurement("candidates", CANDIDATES, 20, _blocks("lab/methods", methods_left_out=BY_HAND)),
    Measurement(
        "coverage",
        ("python benchmarks/coverage.py",),
        30,
        _blocks("lab/intervals", coverage=table(0), false_statements=table(1), which_correlation=table(2)),
        quick=("python benchmarks/coverage.py --samples 10",),
    ),
    Measurement(
        "coverage_others",
        ("python benchmarks/coverage.py --datasets CiteSeer,Wisconsin,BA-Shapes",),
        30,
        _blocks("lab/intervals", coverage_others=table(0)),
    ),
    Measurement(
        "pooled_intervals",
        ("python benchmarks/pooled_intervals.py",),
        60,
        _blocks("lab/intervals", pooled_intervals=table(0)),
    ),
    _sweep(
        "explainable_nets", 15, _blocks("lab/gat_or_gcn", gat_or_gcn=sweep_table("explainable_nets", networks_table))
    ),
    _sweep(
        "penalties_cora",
        40,
        _blocks("lab/regularization", penalties_cora=sweep_table("penalties_cora", penalties_table)),
        penalties_cora="over_uniform",
    ),
    _sweep(
        "penalties_texas",
        15,
        _blocks("lab/regularization", penalties_texas=sweep_table("penalties_texas", penalties_table)),
        penalties_texas="over_uniform",
    ),
    _sweep(
        "penalties_infection",
        90,
        _blocks("lab/regularization", penalties_infection=sweep_table("penalties_infection", penalties_table)),
    ),
    _sweep(
        "penalties_ba_shapes",
        60,
        _blocks("lab/regularization", penalties_ba_shapes=sweep_table("penalties_ba_shapes", penalties_table)),
        penalties_ba_shapes="over_uniform",
    ),
    _sweep("frontier_cora", 60, {}, frontier_cora="frontier"),
    _sweep(
        "front_cora", 30, _blocks("lab/regularization", frontier=BY_HAND, front_cora=BY_HAND), front_cora="frontier"
    ),
    _sweep(
        "regularization",
        25,
        _blocks("lab/regularization", regularization_study=sweep_table("regularization", study_table)),
        regularization="curves",
        pareto="scatter",
    ),
    # The paper.
    Measurement(
        "paper_all",
        ("attree paper all --profile full --jobs 2",),
        120,
        _blocks("lab/reproduction", reproduction_in_short=BY_HAND),
    ),
    _paper(
        "faithfulness",
        "faithfulness",
        40,
        reproduction_faithfulness=report_table("faithfulness"),
        reproduction_faithfulness_2=BY_HAND,
        reproduction_protocols=BY_HAND,
    ),
    _paper("explanation", "explanation", 30),
    _paper("ablation", "ablation", 10),
    _paper("heads", "multihead", 15),
    _paper("heads_2", "multihead", 20, " --seeds 1", reproduction_heads_2=BY_HAND),
    _paper("heads_3", "head_selection", 20, " --seeds 1"),
    _paper("supergat", "supergat", 20),
    _paper("regularization", "regularization", 15),
    _paper("graph_level", "graph_level", 10),
    _paper("proximity", "proximity", 10),
    _paper("training", "training", 20),
    Measurement(
        "paper_runtime_gatt",
        ("attree paper runtime_gatt --profile quick",),
        5,
        _blocks("lab/reproduction", reproduction_runtime_gatt=report_table("runtime_gatt")),
        timed=True,
    ),
    # Time and memory.
    Measurement(
        "runtime",
        ("python benchmarks/runtime.py --datasets ba_shapes,infection,arxiv --out runtime",),
        60,
        _blocks("lab/runtime", runtime_ba_shapes=table(0), runtime_infection=table(1), runtime_arxiv=table(2)),
        {"docs/images/accuracy_runtime.png": "runtime/accuracy_runtime.png"},
        timed=True,
    ),
    Measurement(
        "runtime_two_layers",
        ("python benchmarks/runtime.py --datasets ba_shapes,infection --layers 2",),
        30,
        _blocks("lab/runtime", runtime_two_layers_ba_shapes=table(0), runtime_two_layers_infection=table(1)),
        timed=True,
    ),
    Measurement(
        "sensitivity",
        ("python benchmarks/sensitivity.py",),
        30,
        _blocks("lab/runtime", runtime_differences=BY_HAND),
    ),
    Measurement(
        "evaluate",
        ("python benchmarks/evaluate.py --rounds 9",),
        2,
        _blocks("lab/runtime", evaluation_cost=table()),
        timed=True,
        quick=("python benchmarks/evaluate.py --rounds 1",),
    ),
    Measurement(
        "occlusion",
        (
            "python benchmarks/occlusion.py --graphs cora,pubmed --rounds 7",
            "python benchmarks/occlusion.py --graphs arxiv --rounds 1",
        ),
        5,
        _blocks("lab/runtime", occlusion_cost=BY_HAND),
        timed=True,
        quick=("python benchmarks/occlusion.py --graphs cora --rounds 1",),
    ),
    Measurement(
        "occlusion_peers",
        ("python benchmarks/occlusion.py --graphs cora,pubmed --rounds 7 --peers cora,pubmed",),
        60,
        _blocks("lab/runtime", occlusion_peers=BY_HAND),
        timed=True,
    ),
    Measurement(
        "speed",
        (
            "python benchmarks/attribution.py",
            "python benchmarks/arxiv.py",
            "python benchmarks/reduction.py",
            "python benchmarks/reduction.py --graphs layers --repeats 9",
            "python benchmarks/kendall.py",
        ),
        30,
        _blocks("lab/runtime", speed=BY_HAND),
        timed=True,
        quick=("python benchmarks/kendall.py",),
    ),
    Measurement(
        "callback",
        ("python benchmarks/callback.py", "python benchmarks/callback.py --epochs 8 --rounds 3"),
        10,
        _blocks("lab/runtime", callback_cost=BY_HAND),
        timed=True,
        quick=("python benchmarks/callback.py --epochs 3 --rounds 1",),
    ),
    Measurement(
        "penalties",
        ("python benchmarks/penalties.py --epochs 6 --rounds 4",),
        3,
        _blocks("lab/regularization", penalty_cost=table()),
        timed=True,
        quick=("python benchmarks/penalties.py --epochs 3 --rounds 1",),
    ),
    Measurement(
        "scaling",
        ("python benchmarks/scaling.py --figure scaling.png",),
        15,
        _blocks("lab/scaling", scaling_edges=table(0), scaling_targets=table(1), scaling_layers=table(2)),
        {"docs/images/scaling.png": "scaling.png"},
        timed=True,
        quick=("python benchmarks/scaling.py --largest 10000",),
    ),
    Measurement(
        "scaling_arxiv",
        ("python benchmarks/arxiv_training.py", "python benchmarks/sampler.py"),
        15,
        _blocks("lab/scaling", scaling_arxiv=BY_HAND),
        timed=True,
    ),
    Measurement(
        "page_speed",
        (
            "python benchmarks/page.py",
            "python benchmarks/tab.py",
            "attree --help",
            "attree fit --help",
            'python -c "import attree"',
        ),
        10,
        _blocks("lab/scaling", page_speed=BY_HAND),
        timed=True,
    ),
    Measurement(
        "heterogeneous_cost",
        ("python benchmarks/reduction.py --graphs links types dblp --repeats 3",),
        10,
        _blocks("how_to/heterogeneous", heterogeneous_cost=BY_HAND),
        timed=True,
    ),
    Measurement(
        "explain_arxiv",
        ("python benchmarks/explain_arxiv.py --targets 0-9999",),
        30,
        _blocks("how_to/scaling", explain_arxiv=BY_HAND),
        timed=True,
    ),
    Measurement(
        "on_disk",
        ("python benchmarks/on_disk.py --folder graph_on_disk",),
        60,
        _blocks("how_to/scaling", on_disk=BY_HAND),
        timed=True,
    ),
    # Pictures and pages.
    Measurement(
        "page_screenshots",
        ("python benchmarks/page_screenshots.py --out images",),
        5,
        files={f"docs/images/page_{name}.png": f"images/page_{name}.png" for name in PAGE_PICTURES},
    ),
    Measurement(
        "tensorboard_screenshots",
        (DEMO[0], "attree sweep small_grid", "python benchmarks/tensorboard_screenshots.py --out images"),
        15,
        files={f"docs/images/{name}.png": f"images/{name}.png" for name in ("tab", "tensorboard")},
    ),
    *(
        Measurement(
            f"gallery_{name}",
            (
                f"attree fit --config {name}{fit}",
                f"attree explain logs/{name}/version_0 --targets {targets}",
                f"python docs/_generate/gallery.py {name} logs/{name}/version_0/explain/page.html",
            ),
            10,
            files={f"docs/gallery/{name}.json": f"docs/gallery/{name}.json"},
        )
        for name, fit, targets in (
            ("infection", "", "truth:6"),
            ("mutag", "", "random:6"),
            ("cora", " --explain.every_n_epochs 10", "random:6"),
            ("acm", " --explain.every_n_epochs 10", "random:6"),
        )
    ),
    Measurement(
        "notebook",
        ("python docs/_generate/notebook.py",),
        2,
        files={"examples/explain_your_model.ipynb": "examples/explain_your_model.ipynb"},
    ),
)
"""Everything that README and docs print as measured, recorded or drawn."""
