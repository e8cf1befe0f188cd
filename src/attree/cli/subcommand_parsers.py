"""The parsers of explain, serve, sweep, paper, configs and completion, and the checks of what was typed.

This module imports neither PyTorch nor Lightning, so that help and refusals appear at once. Errors are one sentence.
Lists are written `a,b` or `[a,b]`, as in `attree fit`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attree.cli.command_parser import EXAMPLE_RUN, CommandParser, JoinWords, integer, positive
from attree.defaults import ALL_METHODS, ALL_PROTOCOLS, AUTHORS, CHEAP_METHODS, NUM_TARGETS
from attree.defaults import METHODS as DEFAULT_METHODS
from attree.defaults import PROTOCOLS as DEFAULT_PROTOCOLS
from attree.errors import ArgumentError, expect, expect_name_among
from attree.io.config_files import config_hint, expect_sweep, find_config
from attree.io.run_paths import find_run


def with_resumed(arguments: list[str]) -> list[str]:
    """Return the arguments with `--resume RUN` as the config and the checkpoint of that run.

    The config comes first, so that other arguments change it, as when a run gets more epochs.

    >>> with_resumed(["fit", "--trainer.max_epochs", "9"])
    ['fit', '--trainer.max_epochs', '9']
    """
    places = [place for place, argument in enumerate(arguments) if argument.partition("=")[0] == "--resume"]
    if not places:
        return arguments
    command, place = arguments[0], places[0]
    expect(command == "fit" and len(places) == 1, "resume", "given once, to `attree fit`", " ".join(arguments))
    _, is_joined, joined = arguments[place].partition("=")
    value = joined if is_joined else next(iter(arguments[place + 1 :]), "")
    expect(value != "", "resume", f"a run, such as {EXAMPLE_RUN}", value)
    paths = find_run(Path(value), "attree fit --resume")
    others = arguments[1:place] + arguments[place + (1 if is_joined else 2) :]
    return [command, "--config", str(paths.config), "--ckpt_path", str(paths.checkpoint), *others]


def check_training(typed: list[str], arguments: Mapping[str, Any]) -> None:
    """Refuse a fit, validation, test or prediction of nothing, of a config or of a run that does not exist."""
    options = {argument.partition("=")[0] for argument in typed if argument.startswith("-")}
    if not options:
        trained = "" if typed[0] == "fit" else " --ckpt_path logs/infection/version_0/checkpoints/last.ckpt"
        raise ArgumentError(
            f"Expected a config, or data and model. Try: attree {typed[0]} --config infection{trained} "
            "(`attree configs` lists the configs)."
        )
    with_resumed(typed)
    for value in _values_of(typed, ("--config", "-c")):
        path = find_config(value)
        is_path = value != "" and "\n" not in value and "\0" not in value and ":" not in value
        if is_path and not os.path.exists(path):
            raise ArgumentError(
                "Expected argument `config` to be a YAML file or a name that `attree configs` lists, but got "
                f"{value!r}, which does not exist.{config_hint(value)}"
            )


def check_sweep(typed: list[str], arguments: Mapping[str, Any]) -> None:
    """Refuse a sweep file that does not exist."""
    expect_sweep(str(arguments["file"]))


def _values_of(typed: Sequence[str], options: tuple[str, ...]) -> Iterator[str]:
    """Yield the typed values of an option, written `--option value` or `--option=value`."""
    for argument, following in zip(typed, [*typed[1:], ""], strict=True):
        option, is_joined, value = argument.partition("=")
        if option in options:
            yield value if is_joined else following


def check_run(typed: list[str], arguments: Mapping[str, Any]) -> None:
    """Refuse a run that does not exist, and methods and protocols that do not."""
    find_run(arguments["run"], f"attree {typed[0]}")
    for name in arguments["methods"] or ():
        expect_name_among(name, "methods", ALL_METHODS)
    for name in () if arguments["protocols"] == ["none"] else arguments["protocols"]:
        expect_name_among(name, "protocols", [*ALL_PROTOCOLS, AUTHORS])


_DEFAULT_METHODS = (
    f"default: {','.join(DEFAULT_METHODS)}, and {','.join(CHEAP_METHODS)} if removal is measured by exact updates"
)


def explain_parser() -> CommandParser:
    """Return the parser of `attree explain`."""
    parser = CommandParser(
        "explain",
        """Explain targets of a finished run: each method's scores of the edges around them, and how the prediction
changes when each edge's attention is reduced.

Writes Parquet files to OUT/scores, which pandas.read_parquet, Polars and DuckDB read as one table: target, source,
destination, a column of scores for each method and, for each protocol, dpc_, dne_ and changed_: how far the predicted
class's probability drops, how the negative entropy changes, and whether the class changes when the edge's attention is
reduced. With protocols, a target's rows are all edges of its neighbourhood; with `--protocols none`, only the edges
that carry a flow to it. Memory is bounded for any number of targets. If the command is stopped, run it again to
continue: only missing files are written. Processes and machines can share the work, with a folder OUT that all see.
With `--engine ray`, Ray gives the files to workers on this machine or on a cluster. Without it, the ranks of torchrun,
SLURM or an indexed Kubernetes job write a fixed share each, as `--share 3/16` does. The files are always the same.

A command that is no share also writes a summary: scores_<method>.npz, metrics.json, evaluation.npz, figures and
page.html, which opens in any browser. It prints the strongest edges. If there are more than 200 targets, a random
sample of 200 is measured, and the page shows the 200 most instructive targets. Figures and printed edges are also of
the most instructive targets.""",
        """Start with:  attree explain logs/infection/version_0 --targets random:20
             attree explain logs/infection/version_0 --targets 2,44 --methods gatt,saliency
All cores:   attree explain logs/infection/version_0 --targets all --engine ray
A cluster:   ray job submit -- attree explain RUN --targets all --out /shared/folder --engine ray""",
    )
    parser.add_argument("run", type=Path, help="a run directory (logs/infection/version_0) or its checkpoint")
    parser.add_argument(
        "--targets",
        default="random:20",
        help="ids and ranges (2,44,100-110), random:20, errors (misclassified; errors:20 draws some), truth (with true "
        "edges; truth:20), or all (default: random:20)",
    )
    methods = ", ".join(f"{name} ({label})" for name, (label, _) in ALL_METHODS.items())
    parser.add_list("--methods", None, f"of {methods} ({_DEFAULT_METHODS})")
    _add_protocols_and_allow(parser, "of {}, or none for scores only")
    parser.add_argument("--out", type=Path, default=None, help="folder to write to (default: RUN/explain)")
    parser.add_argument("--overwrite", action="store_true", help="replace the files of another call in the folder")
    parser.add_argument(
        "--by_neighbourhood",
        action="store_true",
        help="run the network on neighbourhoods of targets, for graphs too large for one forward pass; scores only",
    )
    parser.add_argument(
        "--graph",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="explain nodes of a graph on disk, which `attree convert` wrote, instead of the run's data: exactly, on "
        "their neighbourhoods",
    )
    parser.add_argument(
        "--part_rows",
        type=integer(1),
        default=None,
        help="approximate number of rows per file (default: 4 million, or 1 million with protocols)",
    )
    parser.add_argument(
        "--top",
        type=integer(1),
        default=None,
        metavar="K",
        help="write only the K strongest edges of each target, by the first method's score (default: all)",
    )
    parser.add_argument(
        "--share",
        default=None,
        metavar="I/N",
        help="write only this share of the files, from 1/N to N/N (default: that of the launcher, or all)",
    )
    parser.add_argument(
        "--engine",
        choices=("process", "ray"),
        default="process",
        help="who writes the files: this process, or workers of Ray (pip install 'attree[ray]'; default: process)",
    )
    parser.add_argument(
        "--address",
        default=None,
        help="with Ray: auto, or HOST:PORT of a cluster (default: the cluster of the job or of this machine, or else "
        "this machine alone)",
    )
    parser.add_argument(
        "--workers", type=integer(1), default=None, help="with Ray: number of workers (default: as many as have room)"
    )
    parser.add_argument(
        "--cpus", type=integer(1), default=None, help="with Ray: CPUs of each worker, its threads (default: 1)"
    )
    parser.add_argument(
        "--gpus",
        type=positive,
        default=None,
        help="with Ray: GPUs of each worker, to run the network on: 1, or 0.5 for two workers on one (default: 0)",
    )
    parser.add_argument(
        "--figures", type=integer(0), default=5, help="number of most instructive targets to draw (default: 5)"
    )
    parser.add_argument(
        "--show",
        type=integer(0),
        default=3,
        help="number of most instructive targets whose edges are printed (default: 3)",
    )
    parser.add_argument("--seed", type=integer(0), default=0, help="seed of random targets and scores (default: 0)")
    return parser


def serve_parser() -> CommandParser:
    """Return the parser of `attree serve`."""
    parser = CommandParser(
        "serve",
        """Open the page of a finished run with its live model: remove any edges, and see the new prediction.

Only the browser on this computer can open the page. The server writes no files and serves nothing else.""",
        """Start with:  attree serve logs/infection/version_0
             attree serve logs/cora/version_0 --targets 42,1372 --methods gatt,occlusion""",
    )
    parser.add_argument("run", type=Path, help="a run directory (logs/infection/version_0) or its checkpoint")
    parser.add_argument(
        "--targets",
        default=f"random:{NUM_TARGETS}",
        help="ids and ranges (2,44,100-110), random:50, errors, truth, or all, as `attree explain` takes them; the "
        f"page has the 200 most instructive (default: random:{NUM_TARGETS}, as in a fit)",
    )
    parser.add_list("--methods", None, f"of {', '.join(ALL_METHODS)} ({_DEFAULT_METHODS})")
    _add_protocols_and_allow(parser, "how an edge is removed, of {}")
    parser.add_argument("--port", type=integer(0), default=0, help="port to listen on (default: a free one)")
    parser.add_argument(
        "--no_browser", dest="open_browser", action="store_false", help="do not open the page in the browser"
    )
    parser.add_argument("--seed", type=integer(0), default=0, help="seed of random targets and scores (default: 0)")
    return parser


def _add_protocols_and_allow(parser: CommandParser, protocols: str) -> None:
    """Add the arguments that `explain` and `serve` share.

    Args:
        parser: The parser.
        protocols: The help of `--protocols`; `{}` stands for the names of all protocols.
    """
    names = protocols.format(", ".join([*ALL_PROTOCOLS, AUTHORS]))
    parser.add_list("--protocols", list(DEFAULT_PROTOCOLS), f"{names} (default: {','.join(DEFAULT_PROTOCOLS)})")
    allow = "import paths of your own classes that the run's config may use; their code is run"
    parser.add_list("--allow", [], allow, action="extend", metavar="CLASS,...")


def sweep_parser() -> CommandParser:
    """Return the parser of `attree sweep`."""
    parser = CommandParser(
        "sweep",
        """Fit one config many times, with different settings and seeds, and summarise the results.

A sweep file lists settings (`grid:`, `list:`) or searches for them (`search:`, with Optuna's samplers). Each run is an
ordinary `attree fit` with its own run directory, so all runs are side by side in TensorBoard. To share the work among
processes and machines, run the same command on each: they share an Optuna study, in a file in the sweep's folder (on
one machine) or in a database (`--storage`), and no run is done twice. If a worker dies, another continues its run from
the last checkpoint. When the command is repeated, finished runs are skipped, unless their config has changed. If the
first three runs fail for the same reason, the sweep stops.

At the end it writes results.csv, means.csv (mean and standard deviation over the seeds) and figures: results.png
(metrics against settings), pareto.png (explanation quality against accuracy) and, for a search, frontier.png (all
trials, and those that no other beats). Figures are also written as SVG, and shown on TensorBoard's page of images.
frontier.csv ranks the settings by the objectives, best/ has a config for each of the best, and page.html shows all of
it. If runs failed, the exit status is 1, and the reasons and logs are printed.""",
        """Start with:    attree sweep regularization
A search:      attree sweep frontier --workers 4
More machines: the same command on each, with --storage postgresql://user@host/name
In Optuna:     optuna-dashboard sqlite:///logs/sweeps/frontier/study.db
On a cluster:  attree sweep FILE --dry_run | while read -r line; do sbatch --wrap "$line"; done
               attree sweep FILE --collect     (when the jobs have finished)

The comments in the shipped sweep files explain the format: attree configs frontier""",
    )
    parser.add_argument("file", type=Path, help="sweep file (YAML), or a name that `attree configs` lists")
    parser.add_argument(
        "--workers",
        "--jobs",
        type=integer(1),
        default=1,
        metavar="N",
        help="runs in parallel on this machine (default: 1)",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("logs/sweeps"), help="folder of <name>/<run id> (default: logs/sweeps)"
    )
    parser.add_argument(
        "--storage", metavar="URL", default=None, help="database of the study (default: study.db in the folder)"
    )
    parser.add_argument(
        "--grace",
        type=integer(1),
        default=60,
        metavar="SECONDS",
        help="seconds without a heartbeat after which other workers take over a worker's run (default: 60)",
    )
    parser.add_argument("--dry_run", action="store_true", help="print a shell command for each unfinished run")
    parser.add_argument("--run", metavar="ID", default=None, help="do only one run, as the commands of --dry_run do")
    parser.add_argument("--collect", action="store_true", help="only summarise the finished runs")
    return parser


def convert_parser() -> CommandParser:
    """Return the parser of `attree convert`."""
    parser = CommandParser(
        "convert",
        """Write a dataset as a folder of .npy files that attree reads from disk: it may be much larger than memory.

SOURCE is a saved PyG graph or dataset (.pt), a folder of OGB's raw files (with raw/edge.csv.gz), or a list of edges: a
Parquet or CSV file, or a folder of them. Lists of edges are sorted by DuckDB (pip install "attree[disk]") within the
given memory, piece by piece. If the command is stopped, run it again to continue. At the end the folder is checked.

attree.evaluate, attree.explain and `attree explain RUN --graph FOLDER` take the folder.""",
        """A PyG graph: attree convert data/processed/data.pt graph
OGB:         attree convert data/ogb/ogbn_arxiv graph --undirected
Edge lists:  attree convert edges/ graph --columns citing,cited --nodes x=features.npy --nodes y=labels.npy""",
    )
    parser.add_argument("source", type=Path, help="the dataset: a .pt file, OGB's folder, or Parquet or CSV files")
    parser.add_argument("folder", type=Path, help="folder to write, new or empty")
    parser.add_list(
        "--columns",
        [],
        "columns of the edge lists: source, destination, then features of edges; column0, column1 for CSV files "
        "without a header (default: source,destination)",
        metavar="NAME,...",
    )
    parser.add_argument(
        "--nodes",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="an attribute with one row per node, such as x=features.npy (also Parquet, or CSV without a header); may "
        "be repeated",
    )
    parser.add_argument(
        "--num_nodes",
        type=integer(1),
        default=None,
        help="number of nodes (default: rows of the attributes, or the largest id + 1)",
    )
    parser.add_argument(
        "--undirected", action="store_true", help="add the reverse of every edge, and keep each pair of nodes once"
    )
    parser.add_argument("--half", action="store_true", help="write features as float16: half the disk, fewer digits")
    parser.add_argument("--name", default=None, help="name of the dataset (default: that of SOURCE)")
    parser.add_argument(
        "--memory", type=integer(64), default=2048, metavar="MiB", help="memory for sorting (default: 2048)"
    )
    return parser


def paper_parser() -> CommandParser:
    """Return the parser of `attree paper`."""
    parser = CommandParser(
        "paper",
        """Make the paper's tables and figures, with the printed numbers beside them.

NAME is a name that `attree paper list` prints, or `all`. Networks are trained by the paper's recipes. Finished
measurements are cached: run the same command again to continue. A measurement is repeated only if its code, data or
libraries have changed.""",
        """Start with:  attree paper list
             attree paper faithfulness --datasets cora,citeseer --seeds 1
             attree paper all --profile quick""",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="+",
        action=JoinWords,
        help="a table or figure by its name or number (table 1), `all`, or `list` to see their names",
    )
    parser.add_argument(
        "--profile", choices=("quick", "full"), default="full", help="quick: one seed, smaller versions (default: full)"
    )
    parser.add_list("--datasets", None, "datasets of the table to make (default: all)")
    parser.add_list("--models", None, "networks of the table to make (default: all)")
    parser.add_argument(
        "--seeds", type=integer(1), default=None, help="number of networks to average over (default: 3, quick: 1)"
    )
    protocols = ["authors", "coefficient", "weight", "removal"]
    parser.add_list("--protocols", protocols, f"reduction protocols (default: {','.join(protocols)})")
    parser.add_argument("--jobs", type=integer(1), default=1, metavar="N", help="measurements in parallel (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("logs/paper"), help="folder to write to (default: logs/paper)")
    parser.add_argument("--root", default=None, help="data folder (default: $ATTREE_DATA, or data)")
    parser.add_argument(
        "--targets", type=integer(1), default=100, help="number of nodes to explain for faithfulness (default: 100)"
    )
    parser.add_argument(
        "--epochs", type=integer(1), default=None, help="epochs of training, for short trials (default: the recipe's)"
    )
    return parser


def configs_parser() -> CommandParser:
    """Return the parser of `attree configs`."""
    parser = CommandParser(
        "configs",
        """List the configs that come with attree, with a sentence each, or print one of them.

They are found by name in any working directory; a local file of the same name is preferred.""",
        """Run one:           attree fit --config infection
Make it your own:  attree configs infection > mine.yaml, edit it, attree fit --config mine.yaml""",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", default=None, help="the one to print (default: list all)")
    return parser


def completion_parser() -> CommandParser:
    """Return the parser of `attree completion`."""
    parser = CommandParser(
        "completion",
        "Print a script that makes a shell complete attree's commands, options and values.",
        """bash, in ~/.bashrc:  source <(attree completion bash)
zsh, in ~/.zshrc:    source <(attree completion zsh)""",
    )
    parser.add_argument("shell", metavar="SHELL", help="bash or zsh")
    return parser
