"""The arguments of explain, serve, sweep, paper, configs and completion: one parser each.

Nothing here imports PyTorch or Lightning, which take seconds: the help of a command appears at once.
"""

from __future__ import annotations

from pathlib import Path

from attree.cli.command_parser import CommandParser, integer, word_list
from attree.defaults import ALL_METHODS, ALL_PROTOCOLS, AUTHORS, CHEAP_METHODS
from attree.defaults import METHODS as DEFAULT_METHODS
from attree.defaults import PROTOCOLS as DEFAULT_PROTOCOLS


def explain_parser() -> CommandParser:
    """What `attree explain` takes."""
    parser = CommandParser(
        "explain",
        """Explain targets of a finished run: what each method says of the edges around them, and what reducing each
edge's attention does to the prediction.

Writes the folder OUT/scores, Parquet files that pandas.read_parquet, Polars and DuckDB read as one table: target,
source, destination, a column of scores for each method and, for each protocol, dpc_, dne_ and changed_: how far the
predicted class's probability drops, how the negative entropy changes and whether the class changes when the edge's
attention is reduced. With protocols, a target's rows are all edges of its neighbourhood, with `--protocols none` those
that carry a flow to it. Any number of targets takes bounded memory; a call that was stopped goes on where it was when
it is given again. Any number of processes and machines write it together by running the same command with an OUT that
they share: each claims a file, writes it and goes on to the next, and the claims of one that dies expire.

In one process the targets are also summed up: scores_<method>.npz, metrics.json, evaluation.npz, figures and page.html,
which opens in any browser; the strongest edges are printed. Of more than 200 targets, 200 drawn at random are measured,
and the page shows the 200 most telling. Those that are drawn and printed one by one are the most telling, too.""",
        """Start with:  attree explain logs/infection/version_0 --targets random:20
             attree explain logs/infection/version_0 --targets 2,44 --methods gatt,saliency""",
    )
    parser.add_argument("run", type=Path, help="a run's folder (logs/infection/version_0) or its checkpoint")
    parser.add_argument(
        "--targets",
        default="random:20",
        help="ids and ranges (2,44,100-110), random:20, errors (misclassified; errors:20 draws some), truth (with true "
        "edges; truth:20), or all (default: random:20)",
    )
    named = ", ".join(f"{name} ({label})" for name, (label, _) in ALL_METHODS.items())
    parser.add_argument(
        "--methods",
        type=word_list,
        default=None,
        metavar="NAME,...",
        help=f"of {named} (default: {','.join(DEFAULT_METHODS)}, and {','.join(CHEAP_METHODS)} where exact updates of "
        "attention serve the network)",
    )
    _add_protocols_and_allow(parser, "of {}, or none for scores alone")
    parser.add_argument("--out", type=Path, default=None, help="folder to write to (default: RUN/explain)")
    parser.add_argument("--overwrite", action="store_true", help="replace what another call has left in the folder")
    parser.add_argument(
        "--by_neighbourhood",
        action="store_true",
        help="run the network on neighbourhoods of targets: for graphs that fit no single forward pass; scores alone",
    )
    parser.add_argument(
        "--part_rows",
        type=integer(1),
        default=None,
        help="about how many rows a file has (default: 4 million, or 1 million with protocols)",
    )
    parser.add_argument(
        "--top",
        type=integer(1),
        default=None,
        metavar="K",
        help="write each target's K strongest edges alone, by the first method's score (default: all)",
    )
    parser.add_argument(
        "--figures", type=integer(0), default=5, help="most telling targets drawn as case studies (default: 5)"
    )
    parser.add_argument(
        "--show", type=integer(0), default=3, help="most telling targets whose edges are printed (default: 3)"
    )
    parser.add_argument("--seed", type=integer(0), default=0, help="seed of random targets and scores (default: 0)")
    return parser


def serve_parser() -> CommandParser:
    """What `attree serve` takes."""
    parser = CommandParser(
        "serve",
        """Open the page of a finished run with its model behind it: take edges out of the graph, as many as you like,
and see what the network predicts then, computed by the network itself.

The page is for the browser on this computer alone. Nothing is written, and nothing but the page can be asked for.""",
        """Start with:  attree serve logs/infection/version_0
             attree serve logs/cora/version_0 --targets 42,1372 --methods gatt,occlusion""",
    )
    parser.add_argument("run", type=Path, help="a run's folder (logs/infection/version_0) or its checkpoint")
    parser.add_argument(
        "--targets",
        default="random:50",
        help="ids and ranges (2,44,100-110), random:50, errors, truth, or all, as `attree explain` takes them; the "
        "page has the 200 most telling (default: random:50)",
    )
    parser.add_argument(
        "--methods",
        type=word_list,
        default=list(DEFAULT_METHODS),
        metavar="NAME,...",
        help=f"of {', '.join(ALL_METHODS)} (default: {','.join(DEFAULT_METHODS)})",
    )
    _add_protocols_and_allow(parser, "what taking an edge out means, of {}")
    parser.add_argument("--port", type=integer(0), default=0, help="port to listen on (default: a free one)")
    parser.add_argument(
        "--no_browser", dest="open_browser", action="store_false", help="do not open the page in the browser"
    )
    parser.add_argument("--seed", type=integer(0), default=0, help="seed of random targets and scores (default: 0)")
    return parser


def _add_protocols_and_allow(parser: CommandParser, protocols: str) -> None:
    """Add what `explain` and `serve` both take.

    Args:
        parser: The parser.
        protocols: The help of `--protocols`, with `{}` where their names belong.
    """
    names = protocols.format(", ".join([*ALL_PROTOCOLS, AUTHORS]))
    parser.add_argument(
        "--protocols",
        type=word_list,
        default=list(DEFAULT_PROTOCOLS),
        metavar="NAME,...",
        help=f"{names} (default: {','.join(DEFAULT_PROTOCOLS)})",
    )
    parser.add_argument(
        "--allow",
        type=word_list,
        action="extend",
        default=[],
        metavar="CLASS,...",
        help="classes beside attree's own that the run's config may use, by import path: their code is run",
    )


def sweep_parser() -> CommandParser:
    """What `attree sweep` takes."""
    parser = CommandParser(
        "sweep",
        """Fit one config many times, with different settings and seeds, and sum up what came out.

A sweep file lists settings (`grid:`, `list:`) or has them searched for (`search:`, by Optuna's samplers). Each run is
an ordinary `attree fit` with its own folder, so all runs stand side by side in TensorBoard. Any number of processes
and machines work on one sweep by running the same command: they share an Optuna study, a journal file in the sweep's
folder or a database (`--storage`), and none does what another has or had. What a worker that dies had begun waits
again, and goes on from its last checkpoint. Runs that are finished are not done again when the command is repeated;
runs whose config has changed are. If the first three runs fail for the same reason, the sweep stops there.

At the end results.csv, a table with mean and standard deviation over the seeds (also as means.csv), and figures are
made: results.png (metrics against settings), pareto.png (explanation quality against accuracy) and, of a search,
frontier.png (all trials, and those that no other beats); also as SVG, and on TensorBoard's page of images. frontier.csv
has the settings judged by the objectives, best/ a config for each of the best, page.html all of it on one page. If
runs failed, the exit status is 1, and their reasons and logs are named.""",
        """Start with:    attree sweep regularization
A search:      attree sweep frontier --workers 4
More machines: the same command on each, with a --folder that they share, or --storage postgresql://user@host/name
In Optuna:     optuna-dashboard logs/sweeps/frontier/journal.log
On a cluster:  attree sweep FILE --dry_run | while read -r line; do sbatch --wrap "$line"; done
               attree sweep FILE --collect     (when the jobs are through)

The comments of those files explain what a sweep file can say: attree configs frontier""",
    )
    parser.add_argument("file", type=Path, help="sweep file (YAML), or a name that `attree configs` lists")
    parser.add_argument(
        "--workers", "--jobs", type=integer(1), default=1, metavar="N", help="runs at a time here (default: 1)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("logs/sweeps"), help="where <name>/<run id> go (default: logs/sweeps)"
    )
    parser.add_argument(
        "--storage", metavar="URL", default=None, help="database of the study (default: journal.log in the folder)"
    )
    parser.add_argument(
        "--grace",
        type=integer(1),
        default=60,
        metavar="SECONDS",
        help="how long a worker may give no sign of life before others take its run (default: 60)",
    )
    parser.add_argument("--dry_run", action="store_true", help="print a shell command for each unfinished run")
    parser.add_argument("--run", metavar="ID", default=None, help="do one run alone, which is what those commands do")
    parser.add_argument("--collect", action="store_true", help="only sum up the runs that are finished")
    return parser


def paper_parser() -> CommandParser:
    """What `attree paper` takes."""
    parser = CommandParser(
        "paper",
        """Make the paper's tables and figures, beside the numbers that it prints.

NAME is one of those that `attree paper list` shows, or `all`. Networks are trained by the paper's recipes, and what is
finished is kept under all that determines it: the same command goes on where it was stopped, and does again only what
code, data or libraries have changed for.""",
        """Start with:  attree paper list
             attree paper faithfulness --datasets cora,citeseer --seeds 1
             attree paper all --profile quick""",
    )
    parser.add_argument("name", metavar="NAME", help="a table or figure, `all`, or `list` to see their names")
    parser.add_argument(
        "--profile", choices=("quick", "full"), default="full", help="quick: one seed, smaller versions (default: full)"
    )
    parser.add_argument(
        "--datasets", type=word_list, default=None, metavar="NAME,...", help="which datasets (default: all it has)"
    )
    parser.add_argument(
        "--models", type=word_list, default=None, metavar="NAME,...", help="which networks (default: all it has)"
    )
    parser.add_argument(
        "--seeds", type=integer(1), default=None, help="networks that numbers are averaged over (default: 3, quick: 1)"
    )
    protocols = ["authors", "coefficient", "weight", "removal"]
    parser.add_argument(
        "--protocols",
        type=word_list,
        default=protocols,
        metavar="NAME,...",
        help=f"reduction protocols (default: {','.join(protocols)})",
    )
    parser.add_argument("--jobs", type=integer(1), default=1, metavar="N", help="cells at a time (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("logs/paper"), help="where all goes (default: logs/paper)")
    parser.add_argument("--root", default=None, help="data folder (default: $ATTREE_DATA, or data)")
    parser.add_argument(
        "--targets", type=integer(1), default=100, help="nodes explained for faithfulness (default: 100)"
    )
    parser.add_argument(
        "--epochs", type=integer(0), default=None, help="train as many epochs, not the recipe's: for trying things out"
    )
    return parser


def configs_parser() -> CommandParser:
    """What `attree configs` takes."""
    parser = CommandParser(
        "configs",
        """List the configs that come with attree, with a sentence each, or print one of them.

They are found by name wherever attree is installed; a local file of the same name wins.""",
        """Run one:           attree fit --config infection
Make it your own:  attree configs infection > mine.yaml, edit it, attree fit --config mine.yaml""",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", default=None, help="the one to print (default: list all)")
    return parser


def completion_parser() -> CommandParser:
    """What `attree completion` takes."""
    parser = CommandParser(
        "completion",
        "Print a script with which a shell completes attree's commands, options and values.",
        """bash, in ~/.bashrc:  source <(attree completion bash)
zsh, in ~/.zshrc:    source <(attree completion zsh)""",
    )
    parser.add_argument("shell", metavar="SHELL", help="bash or zsh")
    return parser
