"""All nodes of ogbn-arxiv explained by `attree explain`: by one process, and by two that are killed and resumed.

    python benchmarks/explain_arxiv.py [--data data] [--folder DIR] [--epochs 1]

1. A GAT of two layers is trained for a moment: `attree fit`.
2. One process streams the scores of all nodes to a Parquet dataset.
3. Two processes, which share nothing but the folder, do the same; both are killed in the middle and started again.
4. The two datasets are compared, file by file, and every node is looked for in them.

Memory is the peak of a process's resident memory above that of one that has loaded the run and its graph and does
nothing with it (Linux). Most of it is the one forward pass over the whole graph, so what a plain one takes is printed
beside it. It takes some minutes, and about 10 GB on the disk, which are removed at the end.
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


def start(run: Path, out: Path, rank: int, size: int, methods: str) -> subprocess.Popen[bytes]:
    command = [*ATTREE, "explain", str(run), "--targets=all", "--protocols=none", f"--methods={methods}"]
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, f"--out={out}"], env=environment)


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
    """Assert that two datasets hold the same rows: file by file, to the last byte, and every target among them."""
    names = [sorted(path.name for path in (folder / "scores").glob("*.parquet")) for folder in (first, second)]
    assert names[0] == names[1]
    same, different, failed = filecmp.cmpfiles(first / "scores", second / "scores", names[0], shallow=False)
    assert not different, different[:5]
    assert not failed, failed[:5]
    rows, targets = 0, np.zeros(NUM_NODES, dtype=np.int64)
    for name in names[1]:
        column = pq.read_table(second / "scores" / name, columns=["target"])["target"].to_numpy()
        rows += len(column)
        targets += np.bincount(column, minlength=NUM_NODES)
    assert (targets > 0).all()
    return f"The same {rows:,} rows of all {NUM_NODES:,} targets: {len(same)} files equal to the last byte."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="data folder with ogb/ogbn_arxiv in it")
    parser.add_argument("--folder", default=None, help="where to make a temporary folder (default: the system's)")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of training")
    parser.add_argument("--hidden", type=int, default=16, help="hidden channels of the network")
    parser.add_argument("--methods", default="gatt", help="methods, comma-separated")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="explain_arxiv_", dir=arguments.folder))
    console = Console(width=120)
    try:
        run = train(arguments.data, folder, arguments.epochs, arguments.hidden)
        loaded = subprocess.run([sys.executable, "-c", LOAD, str(run)], check=True, capture_output=True, text=True)
        graph, forward = (int(size) / 2**20 for size in loaded.stdout.split()[-2:])
        table = Table(title=f"All nodes of ogbn-arxiv by `attree explain`, {arguments.methods}")
        for column in ("processes", "seconds", "parts", "GB on disk", "peak memory", "above the graph"):
            table.add_column(column, justify="right")

        def add(name: str, seconds: float, out: Path, peak: float) -> None:
            size = sum(path.stat().st_size for path in (out / "scores").iterdir()) / 1e9
            cells = (
                f"{seconds:.0f}",
                str(count_parts(out)),
                f"{size:.2f}",
                f"{peak:.2f} GiB",
                f"{peak - graph:.2f} GiB",
            )
            table.add_row(name, *cells)

        one, two = folder / "one", folder / "two"
        began = time.perf_counter()
        peak = finish([start(run, one, 0, 1, arguments.methods)])
        add("1", time.perf_counter() - began, one, peak)
        began = time.perf_counter()
        first = [start(run, two, rank, 2, arguments.methods) for rank in range(2)]
        there = kill_in_the_middle(first, two, count_parts(one) // 2)
        console.print(f"Both processes were killed with {there} of {count_parts(one)} parts there.")
        peak = finish([start(run, two, rank, 2, arguments.methods) for rank in range(2)])
        add("2, killed once", time.perf_counter() - began, two, peak)
        console.print(table)
        console.print(
            f"A process that has loaded the run and its graph takes {graph:.2f} GiB; a plain forward pass of the "
            f"network peaks at {forward - graph:.2f} GiB above that."
        )
        console.print(compare(one, two))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
