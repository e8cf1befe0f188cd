"""`attree convert`: edge lists, OGB's raw files and PyG's graphs become the folder that `write_graph` writes."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.utils import to_undirected

from attree.cli.convert import convert_dataset
from attree.cli.subcommand_parsers import convert_parser
from attree.data import OnDiskGraph, write_graph
from attree.data.on_disk import Conversion, convert, edge_sorting
from attree.data.on_disk import conversion as conversion_module
from helpers.processes import fork_server
from helpers.time_limit import SECONDS

pytest.importorskip("duckdb")

NODES, EDGES = 50, 400


def random_graph() -> Data:
    generator = torch.Generator().manual_seed(2)
    return Data(
        x=torch.randn(NODES, 3, generator=generator),
        edge_index=torch.randint(NODES, (2, EDGES), generator=generator),
        edge_attr=torch.randn(EDGES, 2, generator=generator),
        y=torch.randint(4, (NODES,), generator=generator),
    )


def edge_frame(data: Data) -> pd.DataFrame:
    source, destination = data.edge_index.numpy()
    return pd.DataFrame({"citing": source, "weight": data.edge_attr[:, 0], "cited": destination})


def tables(folder: Path, kind: str, parts: int = 3) -> Path:
    """Write the edges as several files."""
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(EDGES), parts)):
        path, frame = folder / f"edges-{number}.{kind}", edge_frame(random_graph()).iloc[rows]
        frame.to_parquet(path) if kind == "parquet" else frame.to_csv(path, index=False)
    np.save(folder.parent / "x.npy", random_graph().x.numpy())
    np.save(folder.parent / "y.npy", random_graph().y.numpy())
    return folder


def conversion(tmp_path: Path, kind: str = "parquet", **options: Any) -> Conversion:
    source = tmp_path / "edges" if (tmp_path / "edges").exists() else tables(tmp_path / "edges", kind)
    nodes = {"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"}
    options = {"columns": ("citing", "cited"), "nodes": nodes, **options}
    return Conversion(source, tmp_path / "graph", **options)


def assert_same_arrays(graph: OnDiskGraph, expected: OnDiskGraph) -> None:
    assert (graph.num_nodes, graph.num_edges) == (expected.num_nodes, expected.num_edges)
    assert graph.attributes == expected.attributes
    for name in ("indptr", "indices", "self_loops", *expected.attributes):
        assert np.array_equal(graph.array(name), expected.array(name)), name


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("piece_edges", [2**26, 40], ids=["at once", "in pieces"])
def test_lists_of_edges_become_the_same_folder(
    tmp_path: Path, kind: str, piece_edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_sorting, "PIECE_EDGES", piece_edges)
    data = random_graph()
    del data.edge_attr
    assert_same_arrays(convert(conversion(tmp_path, kind)), write_graph(data, tmp_path / "expected"))
    assert sorted(path.name for path in (tmp_path / "graph").iterdir() if not path.name.startswith(".")) == [
        "graph.json",
        "indices.npy",
        "indptr.npy",
        "self_loops.npy",
        "x.npy",
        "y.npy",
    ]


def test_features_of_edges_follow_their_edges(tmp_path: Path) -> None:
    data = random_graph()
    data.edge_attr = data.edge_attr[:, :1]
    graph = convert(conversion(tmp_path, columns=("citing", "cited", "weight")))
    assert_same_arrays(graph, write_graph(data, tmp_path / "expected"))


def test_reverse_edges_are_those_of_pyg(tmp_path: Path) -> None:
    data = random_graph()
    del data.edge_attr
    data.edge_index = to_undirected(data.edge_index, num_nodes=NODES)
    assert_same_arrays(convert(conversion(tmp_path, undirected=True)), write_graph(data, tmp_path / "expected"))


def test_pygs_graphs_and_datasets(tmp_path: Path) -> None:
    data = random_graph()
    declared = set(torch.serialization.get_safe_globals())
    torch.save(data, tmp_path / "graph.pt")
    InMemoryDataset.save([data], str(tmp_path / "dataset.pt"))
    expected = write_graph(data, tmp_path / "expected")
    for name in ("graph", "dataset"):
        assert_same_arrays(convert(Conversion(tmp_path / f"{name}.pt", tmp_path / name)), expected)
    assert set(torch.serialization.get_safe_globals()) == declared  # other readers of this process need them
    half = convert(Conversion(tmp_path / "graph.pt", tmp_path / "half", half=True))
    assert torch.equal(half.features([4]), data.x[4:5].half().float())


def write_gzip(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as stream:
        pd.DataFrame(rows).to_csv(stream, header=False, index=False)


def test_ogbs_raw_files(tmp_path: Path) -> None:
    data, raw = random_graph(), tmp_path / "ogbn_random"
    write_gzip(raw / "raw" / "edge.csv.gz", data.edge_index.T.numpy())
    write_gzip(raw / "raw" / "num-node-list.csv.gz", [NODES])
    write_gzip(raw / "raw" / "node-feat.csv.gz", data.x.numpy())
    write_gzip(raw / "raw" / "node-label.csv.gz", data.y.view(-1, 1).numpy())
    for number, name in enumerate(("train", "valid", "test")):
        write_gzip(raw / "split" / "time" / f"{name}.csv.gz", np.arange(number, NODES, 3))
    graph = convert(Conversion(raw, tmp_path / "graph"))
    del data.edge_attr
    for number, mask in enumerate(("train_mask", "val_mask", "test_mask")):
        data[mask] = torch.arange(NODES) % 3 == number
    assert_same_arrays(graph, write_graph(data, tmp_path / "expected"))
    assert graph.name == "ogbn_random"


def test_a_stopped_conversion_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_sorting, "PIECE_EDGES", 40)
    write_piece, written = edge_sorting.write_piece, []

    def stop(*arguments: Any) -> None:
        written.append(arguments[3])
        if len(written) == 4:
            raise KeyboardInterrupt
        write_piece(*arguments)

    monkeypatch.setattr("attree.data.on_disk.conversion.write_piece", stop)
    with pytest.raises(KeyboardInterrupt):
        convert(conversion(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"its conversion was stopped. Run the same"):
        OnDiskGraph(tmp_path / "graph")
    graph = convert(conversion(tmp_path))
    assert written == [*range(4), *range(3, max(written) + 1)]
    data = random_graph()
    del data.edge_attr
    assert_same_arrays(graph, write_graph(data, tmp_path / "expected"))


def convert_slowly(tmp_path: Path) -> None:
    """Convert in many pieces, with time enough between them to be killed."""
    write_piece = edge_sorting.write_piece

    def wait_and_write(*arguments: Any) -> None:
        time.sleep(0.3)
        write_piece(*arguments)

    edge_sorting.PIECE_EDGES = 40
    conversion_module.write_piece = wait_and_write
    convert(conversion(tmp_path))


@pytest.mark.long
def test_a_killed_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversion(tmp_path)
    process = fork_server().Process(target=convert_slowly, args=(tmp_path,))
    process.start()
    deadline = time.monotonic() + SECONDS
    while len(list((tmp_path / "graph" / ".unfinished").glob("piece-*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.is_alive()
    process.kill()
    process.join()
    pieces = {path: path.stat().st_mtime_ns for path in (tmp_path / "graph" / ".unfinished").glob("piece-*")}
    assert len(pieces) >= 3
    monkeypatch.setattr(edge_sorting, "PIECE_EDGES", 40)
    monkeypatch.setattr(conversion_module, "join_pieces", check_kept(pieces))
    data = random_graph()
    del data.edge_attr
    assert_same_arrays(convert(conversion(tmp_path)), write_graph(data, tmp_path / "expected"))


def check_kept(pieces: dict[Path, int]) -> Any:
    """Join the pieces after a check that those of the killed process were not written again."""
    join = conversion_module.join_pieces

    def joined(*arguments: Any) -> None:
        assert all(path.stat().st_mtime_ns == written for path, written in pieces.items())
        join(*arguments)

    return joined


def test_another_call_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_piece = edge_sorting.write_piece

    def stop(*arguments: Any) -> None:
        write_piece(*arguments)
        raise KeyboardInterrupt

    with pytest.raises(ValueError, match="but got 'from'"):
        convert(conversion(tmp_path, columns=("from", "to")))  # nothing was written, so the call can be corrected
    with monkeypatch.context() as patch:
        patch.setattr("attree.data.on_disk.conversion.write_piece", stop)
        with pytest.raises(KeyboardInterrupt):
            convert(conversion(tmp_path))
    with pytest.raises(ValueError, match=r"of another one \(other options\): remove the folder"):
        convert(conversion(tmp_path, undirected=True))
    convert(conversion(tmp_path))
    with pytest.raises(ValueError, match="a new or an empty folder, but it holds a finished graph"):
        convert(conversion(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"but it holds thesis.txt"):
        convert(Conversion(tmp_path / "edges", tmp_path / "other"))


@pytest.mark.parametrize(
    ("frame", "options", "words"),
    [
        ({"source": [0, 1], "destination": [1, None]}, {}, r"two ends each|columns of integers"),
        ({"source": [0, 1], "destination": [1, -2]}, {}, r"nodes in \[0, 2\), but got 'nodes from -2 to 1'"),
        (
            {"source": [0, 7], "destination": [1, 1]},
            {"num_nodes": 5},
            r"nodes in \[0, 5\), but got 'nodes from 0 to 7'",
        ),
        ({"source": [0.5, 1], "destination": [1, 1]}, {}, "columns of integers, but got '`source` of DOUBLE'"),
        ({"from": [0], "to": [1]}, {}, "among those of edges.parquet: from, to, but got 'source'"),
    ],
)
def test_wrong_edges_are_refused_by_name(tmp_path: Path, frame: Any, options: Any, words: str) -> None:
    pd.DataFrame(frame).to_parquet(tmp_path / "edges.parquet")
    with pytest.raises(ValueError, match=words):
        convert(Conversion(tmp_path / "edges.parquet", tmp_path / "graph", **options))


def test_wrong_files_are_refused_by_name(tmp_path: Path) -> None:
    ready = conversion(tmp_path)
    np.save(tmp_path / "short.npy", np.zeros(NODES - 1))
    with pytest.raises(ValueError, match=r"one row per node in all files of nodes, but got \{'x.npy': 50, 'short.npy'"):
        convert(
            Conversion(
                ready.source, tmp_path / "a", ready.columns, {"x": tmp_path / "x.npy", "z": tmp_path / "short.npy"}
            )
        )
    with pytest.raises(FileNotFoundError, match=r"nothing.npy to hold an attribute of nodes"):
        convert(Conversion(ready.source, tmp_path / "b", ready.columns, {"x": tmp_path / "nothing.npy"}))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(FileNotFoundError, match=r"broken.parquet to hold a list of edges as parquet"):
        convert(Conversion(tmp_path / "broken.parquet", tmp_path / "c"))
    (tmp_path / "broken.pt").write_bytes(b"PK no")
    with pytest.raises(FileNotFoundError, match=r"broken.pt to be a saved PyG graph"):
        convert(Conversion(tmp_path / "broken.pt", tmp_path / "d"))
    with pytest.raises(FileNotFoundError, match=r"missing to be a dataset to convert"):
        convert(Conversion(tmp_path / "missing", tmp_path / "e"))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready = conversion(tmp_path)
    arguments = [
        str(ready.source),
        str(ready.folder),
        "--columns",
        "citing,cited",
        "--nodes",
        f"x={tmp_path / 'x.npy'}",
    ]
    assert convert_dataset(**vars(convert_parser().parse_args(arguments))) == 0
    assert "(50 nodes, 400 edges, 0 MiB: x)" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ValueError, match=r"`nodes` to be NAME=FILE, such as x=features.npy, but got 'features.npy'"):
        convert_dataset(**vars(convert_parser().parse_args([*arguments[:2], "--nodes", "features.npy"])))
