"""All nodes of ogbn-arxiv explained by `attree explain`: one process, two shares, and Ray, killed and repeated.

    python benchmarks/explain_arxiv.py [--data data] [--folder DIR] [--epochs 1] [--targets all]

1. A GAT of two layers is trained for a moment: `attree fit`.
2. One process streams the scores of the targets to a Parquet dataset.
3. Two processes with a fixed share each (`--share 1/2`, `--share 2/2`) do the same; both are killed in the middle and
   started again.
4. Two workers of Ray do the same (`--engine ray --workers 2`); the command is killed in the middle and repeated.
5. The three datasets are compared, file by file, and every target is looked for in them.

Seconds are of the whole command, or of both commands and the killed ones: with loading the run, and starting Ray.
Memory is the peak of a process's resident memory above that of one that has loaded the run and its graph and does
nothing with it (Linux). Most of it is the one forward pass over the whole graph, so what a plain one takes is printed
beside it. It takes some minutes, and about 20 GB on the disk, which are removed at the end.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

ATTREE = (sys.executable, "-m", "attree.cli")
CONFIG = Path(__file__).parents[1] / "configs" / "arxiv.yaml"
NUM_NODES = 169_343
LOAD = """
import sys
from pathlib import Path
import torch
import attree
import attree.explain_run.command
run = attree.load_run(sys.argv[1])
graph = run.data.graph

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(name))

loaded = memory("VmRSS")
with torch.no_grad():
    run.net(graph.x, graph.edge_index)
print(loaded, memory("VmHWM"))
"""


def train(data: str, folder: Path, epochs: int, hidden: int) -> Path:
    """A run to explain."""
    options = [
        *(f"--data.root={data}", f"--trainer.max_epochs={epochs}", "--trainer.accelerator=cpu"),
        *(f"--model.net.hidden_channels={hidden}", "--explain.num_targets=1", "--explain.figures=0"),
        *("--explain.every_n_epochs=0", "--explain.save=false", f"--trainer.logger.save_dir={folder}"),
        "--trainer.enable_progress_bar=false",
    ]
    subprocess.run([*ATTREE, "fit", f"--config={CONFIG}", *options], check=True, stdout=subprocess.DEVNULL)
    return folder / "arxiv" / "version_0"


class Way:
    """A way to run one call: its commands run at the same time.

    Args:
        name: Its name in the table.
        call: The command that a single process would run.
        out: The output folder.
        options: The options that each of the commands has beside those of the call.
    """

    def __init__(self, name: str, call: list[str], out: Path, *options: list[str]) -> None:
        self.name = name
        self.out = out
        self.options = [option for more in options for option in more]
        self._commands = [[*call, f"--out={out}", *more] for more in options]

    def start(self) -> list[subprocess.Popen[bytes]]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for command in self._commands]

    def run(self, killed_at: int = 0) -> tuple[float, float]:
        """Run the commands, killed first at that many parts. Return the peak memory of any in GiB, and the seconds."""
        began = time.perf_counter()
        if killed_at:
            existing = kill_in_the_middle(self.start(), self.out, killed_at)
            print(f"{self.name}: killed with {existing} parts there")
        return finish(self.start()), time.perf_counter() - began


def finish(processes: list[subprocess.Popen[bytes]]) -> float:
    """Wait for processes, and return the peak resident memory of any, in GiB."""
    peaks = []
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, process.returncode
        peaks.append(usage.ru_maxrss / 2**20)
    return max(peaks)


def count_parts(out: Path) -> int:
    return len(list((out / "scores").glob("part-*.parquet")))


def kill_in_the_middle(processes: list[subprocess.Popen[bytes]], out: Path, parts: int) -> int:
    """Kill processes once so many parts are there; returns how many are."""
    while count_parts(out) < parts:
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    return count_parts(out)


def compare(first: Path, second: Path) -> str:
    """Assert that two datasets hold the same rows: file by file, to the last byte."""
    names = [sorted(path.name for path in (folder / "scores").glob("*.parquet")) for folder in (first, second)]
    assert names[0] == names[1]
    same, different, failed = filecmp.cmpfiles(first / "scores", second / "scores", names[0], shallow=False)
    assert not different, different[:5]
    assert not failed, failed[:5]
    return f"{first.name} and {second.name}: {len(same)} files equal to the last byte."


def count_targets(out: Path) -> tuple[int, int]:
    """Return the number of rows and of targets; assert that the rows of a target are in one file."""
    rows, targets = 0, np.zeros(NUM_NODES, dtype=np.int64)
    for path in sorted((out / "scores").glob("*.parquet")):
        column = pq.read_table(path, columns=["target"])["target"].to_numpy()
        rows += len(column)
        targets[np.unique(column)] += 1
    assert targets.max() == 1
    return rows, int(targets.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="data folder with ogb/ogbn_arxiv in it")
    parser.add_argument("--folder", default=None, help="where to make a temporary folder (default: the system's)")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of training")
    parser.add_argument("--hidden", type=int, default=16, help="hidden channels of the network")
    parser.add_argument("--methods", default="gatt", help="methods, comma-separated")
    parser.add_argument("--targets", default="all", help="targets, as `attree explain` takes them")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="explain_arxiv_", dir=arguments.folder))
    console = Console(width=120)
    try:
        run = train(arguments.data, folder, arguments.epochs, arguments.hidden)
        loaded = subprocess.run([sys.executable, "-c", LOAD, str(run)], check=True, capture_output=True, text=True)
        graph, forward = (int(size) / 2**20 for size in loaded.stdout.split()[-2:])
        call = [*ATTREE, "explain", str(run), f"--targets={arguments.targets}", "--protocols=none", "--show=0"]
        call += [f"--methods={arguments.methods}", "--figures=0"]
        ways = [
            Way("1 process", call, folder / "one", []),
            Way("2 shares, killed once", call, folder / "shares", ["--share=1/2"], ["--share=2/2"]),
            Way("Ray, 2 workers", call, folder / "ray", ["--engine=ray", "--workers=2", "--address=local"]),
            Way("the same, killed once", call, folder / "killed", ["--engine=ray", "--workers=2", "--address=local"]),
        ]
        table = Table(title=f"{arguments.targets} nodes of ogbn-arxiv by `attree explain`, {arguments.methods}")
        for column in ("", "seconds", "parts", "GB on disk", "peak memory above the graph"):
            table.add_column(column, justify="right")
        for way in ways:
            parts = count_parts(ways[0].out)
            peak, seconds = way.run(parts // 2 if "killed" in way.name else 0)
            size = sum(path.stat().st_size for path in (way.out / "scores").iterdir()) / 1e9
            above = "" if "--engine=ray" in way.options else f"{peak - graph:.2f} GiB"
            table.add_row(way.name, f"{seconds:.0f}", str(count_parts(way.out)), f"{size:.2f}", above)
            console.print(table)
            if way is not ways[0]:
                console.print(compare(ways[0].out, way.out))
                shutil.rmtree(way.out)
        console.print(
            f"A process that has loaded the run and its graph takes {graph:.2f} GiB; a plain forward pass of the "
            f"network peaks at {forward - graph:.2f} GiB above that."
        )
        rows, targets = count_targets(ways[0].out)
        console.print(f"{rows:,} rows of {targets:,} targets, each in one file.")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
