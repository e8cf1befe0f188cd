"""How long TensorBoard's tab takes with many runs: to answer what runs there are, and until the tab is drawn.

    python benchmarks/tab.py [--runs 200] [--picture FILE]

The runs are event files of a sweep over weight decay with invented numbers, of four methods under two protocols: times
do not depend on the numbers. TensorBoard is started by its command and has read the log folder before the clock starts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from rich.console import Console
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from browser import chromium, set_screen, tensorboard_command, wait_until_read

METHODS = ("gatt", "avgatt", "uniform", "random")
STATISTICS = (
    "faithfulness",
    "pc_pearson",
    "pc_kendall",
    "pc_spearman",
    "ne_pearson",
    "ne_kendall",
    "ne_spearman",
    "p_auroc",
)
DRAWN = """
const done = arguments[0];
function look() {
  if (document.querySelector(".run .curve")) requestAnimationFrame(() => done(performance.now()));
  else setTimeout(look, 5);
}
look();
"""


def write_runs(folder: Path, count: int) -> None:
    """Write the runs' event files."""
    draw = random.Random(0)
    for number in range(count):
        decay = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)[number % 5]
        with SummaryWriter(str(folder / f"weight_decay={decay:g},seed={number // 5}")) as writer:
            tags = {"val/acc": 0.95 - 20 * decay, "train/loss": 0.2}
            tags |= {f"explain/{method}/truth_auroc": 0.9 - 0.1 * place for place, method in enumerate(METHODS)}
            for place, method in enumerate(METHODS):
                for protocol in ("weight", "removal"):
                    for statistic in STATISTICS:
                        tags[f"explain/{method}/{protocol}/{statistic}"] = 0.6 - 0.1 * place + 10 * decay
            for step in range(10):
                for tag, value in tags.items():
                    writer.add_scalar(tag, value + draw.gauss(0, 0.02) - 0.2 / (step + 1), step)
            for summary in hparams({"weight_decay": decay, "seed": number // 5}, {"val/acc": 0.0}):
                writer._get_file_writer().add_summary(summary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="how many runs")
    parser.add_argument("--repeats", type=int, default=5, help="times to ask and to open")
    parser.add_argument("--picture", type=Path, default=None, help="where a picture of the tab goes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        write_runs(Path(place), arguments.runs)
        asked, opened = [], []
        with tensorboard_command(Path(place)) as address, chromium() as driver:
            wait_until_read(address, arguments.runs, seconds=600)
            set_screen(driver, 1440, 1250)
            for _ in range(arguments.repeats):
                start = time.perf_counter()
                size = len(urlopen(f"{address}/data/plugin/attree/runs").read())
                asked.append(time.perf_counter() - start)
                driver.get("about:blank")
                driver.get(f"{address}/data/plugin_entry.html?name=attree")
                opened.append(float(driver.execute_async_script(DRAWN)))
            if arguments.picture is not None:
                driver.save_screenshot(str(arguments.picture))
    Console().print(
        f"{arguments.runs} runs: {size / 2**20:.2f} MB of JSON in {statistics.median(asked) * 1000:.0f} ms; "
        f"the tab is drawn after {statistics.median(opened):.0f} ms (slowest {max(opened):.0f} ms)",
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
