"""All nodes of ogbn-arxiv explained by `attree explain`: by one process, and by two that are killed and resumed.

    python benchmarks/explain_arxiv.py [--data data] [--folder DIR] [--epochs 1]

1. A GAT of two layers is trained for a moment: `attree fit`.
2. One process streams the scores of all nodes to a Parquet dataset.
3. Two processes, which share nothing but the folder, do the same; both are killed in the middle and started again.
4. The two datasets are compared: rows, columns summed over all rows, and every value of 1,000 random targets.

Memory is the peak of a process's resident memory above that of one that has loaded the run and its graph and does
nothing with it (Linux). It takes some minutes, and about 20 GB on the disk, which are removed at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds
from rich.console import Console
from rich.table import Table

ATTREE = (sys.executable, "-m", "attree.cli")
CONFIG = Path(__file__).parents[1] / "configs" / "arxiv.yaml"
NUM_NODES = 169_343
LOAD = """
import sys
from pathlib import Path
import attree
import attree.explain.command
run = attree.load_run(sys.argv[1])
run.data.graph
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")))
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


def compare(first: Path, second: Path, methods: list[str]) -> str:
    """Assert that two datasets are equal, in the large and on a sample of targets."""
    one, other = (ds.dataset(folder / "scores", format="parquet") for folder in (first, second))
    assert one.schema.equals(other.schema)
    rows = one.count_rows()
    assert rows == other.count_rows(), (rows, other.count_rows())
    sums = []
    for dataset in (one, other):
        own = np.zeros(len(methods) + 3)
        targets = np.zeros(NUM_NODES, dtype=np.int64)
        for batch in dataset.to_batches():
            own += [float(pc.sum(batch[name]).as_py() or 0) for name in dataset.schema.names]
            targets += np.bincount(batch["target"].to_numpy(), minlength=NUM_NODES)
        sums.append((own, targets))
    assert np.array_equal(sums[0][1], sums[1][1])
    assert (sums[0][1] > 0).all()
    np.testing.assert_allclose(sums[0][0], sums[1][0], rtol=1e-12)
    sample = np.random.default_rng(0).choice(NUM_NODES, 1000, replace=False).tolist()
    chosen = [dataset.to_table(filter=pc.field("target").isin(sample)) for dataset in (one, other)]
    assert chosen[0].equals(chosen[1])
    return (
        f"The same {rows:,} rows of all {NUM_NODES:,} targets: as many of each target, the same sum of every column, "
        f"and all {len(chosen[0]):,} rows of 1,000 random targets equal to the bit."
    )


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
        graph = int(loaded.stdout.split()[-1]) / 2**20
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
        console.print(f"A process that has loaded the run and its graph takes {graph:.2f} GiB.")
        console.print(compare(one, two, arguments.methods.split(",")))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
