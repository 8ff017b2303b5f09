"""Tests of the ONNX lint: what passes and what is refused."""

import io
import re
import tarfile
import time
import tracemalloc

import pytest

from models.bundle.archive import pack_bundle, unpack_bundle
from models.bundle.bundle import open_bundle
from models.bundle.manifest import EDGE_FILE, BundleError
from models.update.trust import classify_failure
from models.verification.lint import MAX_MODEL_BYTES, LintError, lint_graph
from tests.examples import further, mark_further
from tests.models.conftest import echo_graph
from tests.models.doubles.hostile import HOSTILE, edited
from wire.protocol.rollout import InstallFailure

SECONDS, MEGABYTES = 2.0, 512


def test_the_echo_graph_passes_and_is_described():
    facts = lint_graph(echo_graph())
    assert facts == (10, 20, 4, 2, 8, ("Cast", "Mul", "Round"))


def test_what_the_forge_makes_passes(forged):
    facts = lint_graph(forged.read_file(EDGE_FILE))
    assert facts.opset == forged.manifest.target.opset
    assert facts.weight_bytes < len(forged.read_file(EDGE_FILE))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_graph_is_refused_with_one_line_that_says_why(name):
    data, words = HOSTILE[name]
    begun = time.thread_time()
    with pytest.raises(LintError, match=words) as caught:
        lint_graph(data)
    assert time.thread_time() - begun < SECONDS
    assert re.fullmatch(r"edge\.onnx: [ -~]{1,400}", str(caught.value))


def varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


HEAD = b"\x08\x0a" + field(8, b"\x10\x14")
FLOODS = {  # made when they are asked for: together they have 240 MB
    "half a million empty nodes": lambda: field(7, b"\x0a\x00" * 500_000),
    "half a million dimensions": lambda: field(7, field(5, field(1, b"\x01" * 500_000))),
    "half a million dimensions apart": lambda: field(7, field(5, b"\x08\x01" * 500_000)),
    "half a million notes": lambda: field(7, b"\x52\x00" * 500_000),
    "a hundred thousand long names": lambda: field(7, field(1, field(1, b"n" * 508 + "\U0001f600".encode()) * 100_000)),
    "80 MB of small numbers": lambda: field(7, field(5, b"\x08\x01\x10\x07" + field(7, b"\x01" * 80_000_000))),
}


@pytest.mark.parametrize("name", mark_further(FLOODS, ["half a million notes"]))
def test_a_flood_is_refused_in_bounded_time(name):
    data = HEAD + FLOODS[name]()
    begun = time.thread_time()
    with pytest.raises(LintError):
        lint_graph(data)
    assert time.thread_time() - begun < SECONDS


@pytest.mark.parametrize("name", [further("half a million empty nodes"), "a hundred thousand long names"])
def test_a_flood_is_refused_in_bounded_memory(name):
    data = HEAD + FLOODS[name]()
    tracemalloc.start()
    with pytest.raises(LintError):
        lint_graph(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(data) + peak < MEGABYTES << 20


def test_a_refusal_is_a_failure_of_integrity():
    assert classify_failure(LintError("no")) is InstallFailure.INTEGRITY


def test_a_file_too_big_is_refused_unread():
    with pytest.raises(LintError, match="at most"):
        lint_graph(bytes(MAX_MODEL_BYTES + 1))


@pytest.mark.parametrize(
    "odd",
    [
        b"\x88\x80\x00\x0a",  # a tag longer than it need be
        b"\x08\x8a\x00",  # a value longer than it need be
        b"\x08" + b"\xff" * 9 + b"\x02",  # 65 bits
        b"\x08" + b"\xff" * 11,  # no end
        b"\x0b\x0c",  # a group
        b"\x00\x01",  # field 0
        b"\x0d\x0a\x00\x00\x00",  # ir_version as a float
        b"\x0a\x01\x0a",  # ir_version as bytes
    ],
)
def test_what_two_readers_could_take_for_two_things_is_refused(odd):
    with pytest.raises(LintError):
        lint_graph(odd + echo_graph()[2:])


def test_notes_for_people_do_no_harm():
    def edit(m):
        m.producer_name, m.doc_string = "a tool", "x" * 10_000
        m.graph.node[0].doc_string = "why"
        m.metadata_props.add(key="author", value="x" * 10_000)

    assert lint_graph(edited(edit)) == lint_graph(echo_graph())


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_in_a_packed_bundle_is_refused_before_anything_is_written(made, tmp_path, kind):
    link = tarfile.TarInfo(EDGE_FILE)
    link.type, link.linkname, link.mode = kind, "../../etc/passwd", 0o644
    packed = link.tobuf(tarfile.USTAR_FORMAT, "ascii") + pack_bundle(made)
    target = tmp_path / "slot"
    target.mkdir()
    with pytest.raises(BundleError, match="not a plain file"):
        unpack_bundle(io.BytesIO(packed), target)
    assert list(target.iterdir()) == []


def test_a_link_in_a_bundles_folder_is_refused(made, tmp_path):
    (tmp_path / "elsewhere.onnx").write_bytes(made.read_file(EDGE_FILE))
    (made.path / EDGE_FILE).unlink()
    (made.path / EDGE_FILE).symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(BundleError, match="is a link"):
        open_bundle(made.path)
