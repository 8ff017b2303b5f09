"""Tests of the weight reader: every tensor as it was written, one pass, no second copy, and every lie refused."""

import json
import os
import re
import struct
import subprocess
import sys
from contextlib import contextmanager
from hashlib import file_digest, sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file

from models.bundle.hub_part import HubManifest, PartFile, WeightFiles
from models.bundle.manifest import BundleError
from models.graph.aten_operations import DTYPES
from models.graph.format import TensorSignature
from models.graph.weight_reader import CHUNK_BYTES, TensorSlice, load_packed_weights, load_slices, load_weights
from models.graph.weights import dtype_name
from tests.examples import further

ROOT = Path(__file__).parents[3]


@contextmanager
def opened(*paths: Path, promised: str = ""):
    """The files of weights as a hub part hands them out; `promised`: another SHA-256 than theirs."""
    digests = {
        path.name: PartFile(promised or sha256(path.read_bytes()).hexdigest(), path.stat().st_size) for path in paths
    }
    part = HubManifest(name="echo", version=1, graph="hub.json", weights=tuple(digests), files=digests)
    with WeightFiles(part, {path.name: os.open(path, os.O_RDONLY) for path in paths}) as files:
        yield files


def signatures(tensors, **sources: str) -> dict[str, TensorSignature]:
    return {
        name: TensorSignature(dtype_name(tensor), tuple(tensor.shape), sources.get(name, ""))
        for name, tensor in tensors.items()
    }


def saved(path: Path, tensors) -> Path:
    save_file(tensors, path)
    return path


def lying(header: bytes, data: bytes = bytes(16)) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype="F32", shape=(4,), offsets=(0, 16), **more) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def refused(data: bytes, ports) -> str:
    with pytest.raises(BundleError) as caught:
        load_packed_weights([data], ports)
    assert "\n" not in str(caught.value)
    return str(caught.value)


ONE = {"w0": TensorSignature("float32", (4,))}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_read_bit_by_bit_from_several_files(tmp_path, dtype):
    torch.manual_seed(1)
    large = torch.randint(0, 2, (3, CHUNK_BYTES // 8 + 5)).to(DTYPES[dtype])  # more than one chunk of any type
    tensors = {"w0": large, "w1": torch.tensor(1).to(DTYPES[dtype]), "w2": torch.empty(0, 3, dtype=DTYPES[dtype])}
    files = saved(tmp_path / "a", {"w0": large}), saved(tmp_path / "b", {name: tensors[name] for name in ("w1", "w2")})
    with opened(*files) as taken:
        found = load_weights(taken, signatures(tensors))
    assert found.keys() == tensors.keys()
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype is tensor.dtype for name, tensor in tensors.items()
    )


def test_what_was_read_does_not_change_with_the_file(tmp_path):
    file = saved(tmp_path / "a", {"w0": torch.ones(1000)})
    with opened(file) as taken:
        found = load_weights(taken, {"w0": TensorSignature("float32", (1000,))})
    with file.open("r+b") as changed:
        changed.write(b"\0" * file.stat().st_size)
    assert found["w0"].sum() == 1000


def test_a_file_that_is_not_the_promised_one_is_called_so_even_if_its_numbers_are_none(tmp_path):
    tensors = {"w0": torch.full((4,), float("nan"))}
    file = saved(tmp_path / "hub.safetensors", tensors)
    with opened(file, promised="0" * 64) as taken, pytest.raises(BundleError, match=r"hub.safetensors: its content is"):
        load_weights(taken, signatures(tensors))
    with opened(file) as taken, pytest.raises(BundleError, match="weights: w0 holds NaN"):
        load_weights(taken, signatures(tensors))


@pytest.mark.parametrize("dtype", [further("float64"), further("float32"), "float16", further("bfloat16")])
@pytest.mark.parametrize("at", [0, CHUNK_BYTES // 2 + 7, -1])
def test_a_single_nan_is_found_wherever_it_lies(dtype, at):
    x = torch.zeros(CHUNK_BYTES, dtype=DTYPES[dtype])
    x[at] = float("nan")
    assert refused(save({"w0": x}), signatures({"w0": x})) == "weights: w0 holds NaN"
    x[at] = float("-inf")
    assert torch.equal(load_packed_weights([save({"w0": x})], signatures({"w0": x}))["w0"], x)


def test_truth_values_of_other_bytes_than_0_and_1_are_refused():
    data = lying(json.dumps({"w0": entry("BOOL", (16,))}).encode(), bytes([0, 1] * 7 + [0, 2]))
    assert "neither 0 nor 1" in refused(data, {"w0": TensorSignature("bool", (16,))})


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"w0": entry(offsets=(0, 32))}, "bytes 0 to 32 for F32"),
        ({"w0": entry(offsets=(16, 32))}, "leaves a hole"),
        ({"w0": entry(offsets=(-16, 0))}, "bytes -16"),
        ({"w0": entry(shape=(2,), offsets=(0, 8)), "w1": entry(shape=(3,), offsets=(4, 16))}, "overlaps"),
        ({"w0": entry(shape=(3,), offsets=(0, 12))}, "up to byte"),
        ({"w0": entry(shape=(1 << 62,), offsets=(0, 1 << 64))}, "lies|is not"),
        ({"w0": entry(shape=(4, 8), offsets=(0, 128))}, "its header lies"),
        ({"w0": entry(shape=(-4, -1))}, "for F32"),
        ({"w0": entry("F31")}, "type 'F31'"),
        ({"w0": entry(more=1)}, "more"),
        ({"w0": entry("F16", (8,))}, r"w0 is float16 \[8\], not float32 \[4\]"),
        ({"w0": entry(shape=(2, 2))}, r"w0 is float32 \[2, 2\], not float32 \[4\]"),
        ({"w7": entry()}, "missing or too many: w0, w7"),
        ({}, "up to byte"),
        ([], "not a safetensors file"),
    ],
)
def test_a_header_that_lies_is_refused_before_a_tensor_is_read(header, why):
    assert re.search(why, refused(lying(json.dumps(header).encode()), ONE))


@pytest.mark.parametrize("data", [b"", b"\x80\x04N.", struct.pack("<Q", 1 << 63) + b"{}", lying(b"{" * 5000, b"")])
def test_what_is_no_safetensors_file_is_refused(data):
    assert "not a safetensors file" in refused(data, ONE)


def test_metadata_of_the_writer_is_left_alone():
    x = torch.arange(4.0)
    assert load_packed_weights([save({"w0": x}, {"format": "pt"})], ONE)["w0"].tolist() == [0, 1, 2, 3]


def test_tensors_of_foreign_files_are_found_by_their_names_and_what_nobody_wants_is_only_hashed(tmp_path):
    held = {"vit.norm.weight": torch.arange(4.0), "not.asked.for": torch.full((CHUNK_BYTES,), float("nan"))}
    ports = {"w0": TensorSignature("float32", (4,), "vit.norm.weight")}
    with opened(saved(tmp_path / "a", held)) as taken:
        assert load_weights(taken, ports).keys() == {"w0"}
        assert load_slices(taken.descriptors.values(), ports, {"k": TensorSlice("w0", 0, 1, 2)})["k"].tolist() == [2, 3]
    with opened(saved(tmp_path / "b", held), promised="0" * 64) as taken, pytest.raises(BundleError, match="SHA-256"):
        load_weights(taken, ports)


def test_surplus_under_a_name_of_our_own_is_refused_and_so_is_any_where_no_file_is_foreign():
    x = torch.zeros(4)
    foreign = {"w0": TensorSignature("float32", (4,), "a.weight")}
    assert "too many: w3" in refused(save({"a.weight": x, "w3": x.clone()}), foreign)
    assert "too many: b.weight" in refused(save({"w0": x, "b.weight": x.clone()}), ONE)


def test_a_name_in_two_files_is_refused(tmp_path):
    files = [saved(tmp_path / name, {"w0": torch.zeros(4)}) for name in "ab"]
    with opened(*files) as taken, pytest.raises(BundleError, match="a name stands in two files"):
        load_weights(taken, ONE)


@pytest.mark.parametrize("shape", [(8, 6, 4), (4, 2048, 6), (2, 2, 3 << 19)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, further(2)])
def test_the_slices_of_all_ranks_are_the_tensor_however_its_bytes_lie(tmp_path, shape, axis):
    """Runs of a few bytes are picked from whole rows, runs above 1 MiB read for themselves."""
    whole = torch.randn(*shape)
    with opened(saved(tmp_path / "a", {"w0": whole})) as taken:
        parts = [
            load_slices(taken.descriptors.values(), signatures({"w0": whole}), {"w0": TensorSlice("w0", axis, at, 2)})
            for at in (0, 1)
        ]
    assert torch.equal(torch.cat([part["w0"] for part in parts], axis), whole)


def test_a_slice_that_cannot_be_cut_or_holds_nan_is_refused(tmp_path):
    whole = torch.zeros(4, 3)
    whole[3, 2] = float("nan")
    ports = signatures({"w0": whole})
    with opened(saved(tmp_path / "a", {"w0": whole})) as taken:
        files = list(taken.descriptors.values())
        with pytest.raises(BundleError, match="cannot be divided in 2 along axis 1"):
            load_slices(files, ports, {"w0": TensorSlice("w0", 1, 0, 2)})
        with pytest.raises(BundleError, match="w0 holds NaN"):
            load_slices(files, ports, {"w0": TensorSlice("w0", 0, 1, 2)})
        with pytest.raises(BundleError, match="missing or too many: w9"):
            load_slices(files, ports, {"w9": TensorSlice("w9")})


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path):
    file = saved(tmp_path / "a", {"w0": torch.zeros(4)})
    with opened(file) as taken:
        os.truncate(file, file.stat().st_size - 4)
        with pytest.raises(BundleError, match="its header lies"):
            load_weights(taken, ONE)


PEAK = """
import os, resource, sys, torch
from models.graph.format import TensorSignature
from models.graph.weight_reader import TensorSlice, load_slices, load_weights
from tests.models.graph.test_weight_reader import sparse, opened_sparse, ROWS
torch.set_num_threads(1)
resource_peak = lambda: int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
with opened_sparse(sys.argv[1]) as files:
    ports = {f"w{at}": TensorSignature("float32", (ROWS, 1024)) for at in range(4)}
    before = resource_peak()
    if sys.argv[2] == "whole":
        held = load_weights(files, ports)
    else:
        held = load_slices(files.descriptors.values(), ports, {name: TensorSlice(name, 1, 1, 2) for name in ports})
    weights = sum(x.nbytes for x in held.values())
    print(weights, resource_peak() - before)
"""
ROWS = 1 << 16  # of 4 KiB, four times: 1 GiB


def sparse(path: Path) -> Path:
    """A file of 1 GiB of weights that takes no room on the disk."""
    size = ROWS * 4096
    tensors = {f"w{at}": entry(shape=(ROWS, 1024), offsets=(at * size, (at + 1) * size)) for at in range(4)}
    with path.open("wb") as file:
        file.write(lying(json.dumps(tensors).encode(), b""))
        file.truncate(file.tell() + 4 * size)
    return path


@contextmanager
def opened_sparse(path: str):
    digest = Path(f"{path}.sha256").read_text()
    part = HubManifest(
        name="echo",
        version=1,
        graph="hub.json",
        weights=("w",),
        files={"w": PartFile(digest, Path(path).stat().st_size)},
    )
    with WeightFiles(part, {"w": os.open(path, os.O_RDONLY)}) as files:
        yield files


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", ["whole", "slices"])
def test_weights_are_never_in_memory_twice(tmp_path, way):
    path = sparse(tmp_path / "w")
    with path.open("rb") as file:
        (tmp_path / "w.sha256").write_text(file_digest(file, "sha256").hexdigest())
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), way], cwd=ROOT, capture_output=True, text=True, check=True
    )
    weights, peak = map(int, done.stdout.split())
    assert weights == (1 << 30 if way == "whole" else 1 << 29)
    assert weights <= peak <= 1.1 * weights
