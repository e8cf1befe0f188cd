"""What one evaluation, one fit or one explanation passes through: files, functions, classes, and whole-graph passes.

    python benchmarks/trace.py [--of evaluate|explain|fit] [--net GAT] [--nodes 200] [--layers 2]

Counted is the second of two calls, so that imports and what is found out once for a class do not count. A function
counts if it was entered, a class if one of its methods was, a pass if the model's forward got all nodes.

`evaluate` has one method (`gatt`), one protocol (`weight`) and 20 targets; `explain` has the defaults and one target.
The model is a network of attree, PyG's GAT with two heads, or the same with jumping knowledge. The last takes more
passes, which find out what its outputs belong to and what bypasses its attention; of plain stacks that is known. `fit`
is the command with the config `infection`, two epochs, an explanation after each, and the report at the end: also what
reads the command line counts. The script uses public names alone, so that it also traces older versions.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GAT as PyGGAT

import attree
from attree.cli import main as command
from attree.models import GAT, GATv2, SuperGAT

HOME = Path(attree.__file__).parent
NETS: dict[str, Callable[[int], torch.nn.Module]] = {
    "GAT": lambda layers: GAT(8, 3, num_layers=layers),
    "GATv2": lambda layers: GATv2(8, 3, num_layers=layers),
    "SuperGAT": lambda layers: SuperGAT(8, 3, num_layers=layers),
    "pyg": lambda layers: PyGGAT(8, 16, layers, out_channels=3, heads=2),
    "pyg_jk": lambda layers: PyGGAT(8, 16, layers, out_channels=3, heads=2, jk="cat"),
}


class Trace:
    """The functions and classes of attree that a call passes through.

    Attributes:
        functions: Files and names of the functions that were entered.
        classes: Files and names of the classes whose methods were entered.
    """

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.classes: set[tuple[str, str]] = set()

    def run(self, call: Callable[[], Any]) -> None:
        """Make the call and look at every function that it enters."""
        sys.setprofile(self._see)
        try:
            call()
        finally:
            sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(HOME)) or code.co_name.startswith("<"):
            return
        file = str(Path(code.co_filename).relative_to(HOME))
        self.functions.add((file, code.co_qualname))
        owner = code.co_qualname.rpartition(".")[0]
        if owner and not owner.endswith("<locals>"):
            self.classes.add((file, owner))

    @property
    def rooms(self) -> Counter[str]:
        """How many files of each folder were entered."""
        return Counter(file.partition("/")[0] for file in {file for file, _ in self.functions})


def measure(of: str, net: str, num_nodes: int, num_layers: int) -> tuple[Trace, int]:
    """The trace of one evaluation or explanation, and how often the model ran on the whole graph."""
    torch.manual_seed(0)
    graph = Data(x=torch.randn(num_nodes, 8), edge_index=torch.randint(0, num_nodes, (2, 3 * num_nodes)))
    model = NETS[net](num_layers).eval()
    passes = 0

    def count(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal passes
        x = args[0] if args else kwargs["x"]
        passes += isinstance(x, Tensor) and x.shape[0] == num_nodes

    def call() -> None:
        if of == "explain":
            attree.explain(model, graph, 5)
        else:
            attree.evaluate(model, graph, num_targets=20, methods=["gatt"], protocols=["weight"])

    trace = Trace()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()
        handle = model.register_forward_pre_hook(count, with_kwargs=True)
        trace.run(call)
        handle.remove()
    return trace, passes


def measure_fit() -> Trace:
    """The trace of the command `attree fit`."""
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--trainer.max_epochs=2", "--explain.every_n_epochs=1", "--trainer.accelerator=cpu"]
        args = ["fit", "--config=infection", *options, f"--trainer.logger.init_args.save_dir={folder}"]

        def call() -> None:
            with suppress(SystemExit), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                command(args)

        call()
        trace.run(call)
    return trace


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=["evaluate", "explain", "fit"], default="evaluate", help="what is traced")
    parser.add_argument("--net", choices=list(NETS), default="GAT", help="the model; of `fit`, the config says it")
    parser.add_argument("--nodes", type=int, default=200, help="nodes of the random graph")
    parser.add_argument("--layers", type=int, default=2, help="layers of the network")
    arguments = parser.parse_args()
    passes: int | None = None
    if arguments.of == "fit":
        trace = measure_fit()
    else:
        trace, passes = measure(arguments.of, arguments.net, arguments.nodes, arguments.layers)
    private = sum(name.rpartition(".")[2].startswith("_") for _, name in trace.classes)
    rooms = ", ".join(f"{room} {count}" for room, count in trace.rooms.most_common())
    print(f"files      {sum(trace.rooms.values())}  ({rooms})")
    print(f"functions  {len(trace.functions)}")
    print(f"classes    {len(trace.classes)}, {private} of them private")
    if passes is not None:
        print(f"passes     {passes} over the whole graph")


if __name__ == "__main__":
    main()
