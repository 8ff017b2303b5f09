"""A version of the echo model whose hub part is larger than 2 GiB: a table of embeddings, nearly all of it holes."""

import json
import os
import struct
from pathlib import Path

import numpy as np

from models.bundle.bundle import Bundle
from models.bundle.manifest import Precision, TargetPlatform
from models.graph.format import FORMAT, GraphDocument, GraphNode, HubModelDocument, TensorSignature, encode_hub_model
from models.update.client import RepositorySource, ResumingFetcher, UpdateClient
from models.update.poll import PollRequest, poll_repository
from models.update.slots import Store
from tests.cloud_hub.doubles.versions import make_version

ROWS, COLUMNS = 9_000_000, 64  # of float32: 2.3 GB
LABELS = 10
FAVOURED = 7  # the label whose row of the table holds numbers
SHARD = "hub-00001.safetensors"


def make_large_version(folder: Path, version: int = 1, rows: int = ROWS) -> Bundle:
    """Write a version into `folder`; its weights take next to no room on the disk, as they are sparse.

    The hub's answer is the label that the table favours, whatever the device thinks: only who has read the end of the
    table can know it.
    """
    source = folder / f"{version}-{SHARD}"
    write_table(source, rows)
    files: dict[str, bytes | Path] = {"hub.json": build_graphs(rows), SHARD: source}
    target = TargetPlatform("onnxruntime", 20, Precision.FLOAT32, "any")
    made = make_version(folder / f"echo@{version}", files, version=version, target=target)
    source.unlink()
    return made


def write_table(path: Path, rows: int) -> None:
    """Write a safetensors file of the table `w0` and of the rows `w1` that are looked up, one a label."""
    table_bytes = rows * COLUMNS * 4
    header = json.dumps(
        {
            "w0": {"dtype": "F32", "shape": [rows, COLUMNS], "data_offsets": [0, table_bytes]},
            "w1": {"dtype": "I64", "shape": [LABELS], "data_offsets": [table_bytes, table_bytes + 8 * LABELS]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    begin = 8 + len(header)
    wanted = np.arange(rows - LABELS, rows, dtype=np.int64)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(begin + table_bytes + 8 * LABELS)
        os.pwrite(file.fileno(), np.ones(COLUMNS, np.float32).tobytes(), begin + int(wanted[FAVOURED]) * COLUMNS * 4)
        os.pwrite(file.fileno(), wanted.tobytes(), begin + table_bytes)


def build_graphs(rows: int) -> bytes:
    """Build both graphs: the codes or scores, and on top of them the sums of the rows that are looked up."""
    nodes = [
        GraphNode("aten.embedding.default", [{"weight": "w0"}, {"weight": "w1"}]),
        GraphNode("aten.sum.dim_IntList", [{"node": 0}, [1]]),
        GraphNode("aten.add.Tensor", [{"input": 0}, {"node": 1}]),
    ]
    graph = GraphDocument([TensorSignature("float32", (LABELS,))], nodes, [{"node": 2}])
    weights = {"w0": TensorSignature("float32", (rows, COLUMNS)), "w1": TensorSignature("int64", (LABELS,))}
    return encode_hub_model(HubModelDocument(FORMAT, weights, {"tail": graph, "whole": graph}))


def poll_as_a_device(folder: Path, url: str, root: bytes) -> tuple[int, int]:
    """The bytes that a new device fetches of targets, and those it has stored of the version then."""
    fetcher = ResumingFetcher()
    with Store(folder) as store:
        source = RepositorySource(f"{url}/metadata/", f"{url}/targets/", root)
        result = poll_repository(UpdateClient(store.metadata, source, fetcher), store, PollRequest(family="echo"))
        assert result.refusals == ()
        assert result.staged
        metadata = sum(path.stat().st_size for path in store.metadata.rglob("*.json") if not path.is_symlink())
        stored = sum(path.stat().st_size for path in store.slot_folder(result.staged).rglob("*") if path.is_file())
        return fetcher.received_bytes - metadata, stored
