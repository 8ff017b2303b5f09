"""Hub parts: both halves of a version are written and opened together; every way to differ is refused in one line."""

import json
import os
from contextlib import suppress
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.bundle import open_bundle
from models.bundle.hub_part import (
    HubKind,
    HubManifest,
    HubPart,
    PartFile,
    check_hub_manifest,
    decode_hub_manifest,
    encode_hub_manifest,
    open_hub_part,
)
from models.bundle.manifest import NO_HUB, BundleError, ParallelPlan, digest_edge
from models.bundle.version import write_version
from models.runtime.runner import echo_manifest

EDGE_FILES = {"edge.onnx": b"edge", "golden.npz": b"golden"}
WEIGHTS = bytes(range(256)) * 40
HUB_FILES = {"hub.json": b"{}", "hub-1.safetensors": WEIGHTS, "hub-2.safetensors": WEIGHTS[::-1]}
SHARDS = ("hub-1.safetensors", "hub-2.safetensors")
EDGE = msgspec.structs.replace(echo_manifest(), format=3, hub=NO_HUB)


def part_manifest(**changes) -> HubManifest:
    base = HubManifest(name="echo", version=1, graph="hub.json", weights=SHARDS, parallel=ParallelPlan(tensor=2))
    return msgspec.structs.replace(base, **changes)


@pytest.fixture
def version(tmp_path):
    return write_version(tmp_path / "echo-1", EDGE, EDGE_FILES, part_manifest(), HUB_FILES)


def refused(bundle, words):
    with pytest.raises(BundleError, match=words) as caught:
        open_hub_part(bundle.path, bundle.manifest)
    assert "\n" not in str(caught.value)
    assert str(bundle.path) in str(caught.value)


def rewrite_part(bundle, **changes):
    """Change part.json as someone would who can write to the folder but not to the manifest."""
    place = bundle.path / "hub" / "part.json"
    place.write_text(json.dumps(json.loads(place.read_bytes()) | changes))


def test_both_halves_open_to_what_was_written(version):
    part = open_hub_part(version.path, version.manifest)
    assert version.manifest.files.keys() == EDGE_FILES.keys()
    assert part.manifest.files["hub-1.safetensors"] == PartFile(sha256(WEIGHTS).hexdigest(), len(WEIGHTS))
    assert part.digest == version.manifest.hub_part == sha256((part.path / "part.json").read_bytes()).hexdigest()
    assert part.manifest.edge == digest_edge(version.manifest)
    assert (part.manifest.model, part.manifest.parallel.tensor) == ("echo@1", 2)
    assert part.manifest.weight_bytes == 2 * len(WEIGHTS)
    assert part.read_file("hub.json") == b"{}"
    with part.open_weights() as files:
        assert [os.pread(fd, 1 << 20, 0) for fd in files.descriptors.values()] == [WEIGHTS, WEIGHTS[::-1]]
    part.verify_weights()


def test_the_same_halves_give_the_same_bytes(tmp_path, version):
    other = write_version(tmp_path / "other", EDGE, EDGE_FILES, part_manifest(), HUB_FILES)
    assert other.digest == version.digest
    assert (other.path / "hub/part.json").read_bytes() == (version.path / "hub/part.json").read_bytes()


def test_the_edge_part_opens_without_a_hub_part(tmp_path, version):
    (version.path / "hub").rename(tmp_path / "away")
    assert open_bundle(version.path).digest == version.digest
    refused(version, "the hub part of echo@1 is not there")


def test_a_file_on_disk_is_linked_and_not_copied(tmp_path):
    source = tmp_path / "big.safetensors"
    source.write_bytes(WEIGHTS)
    files = {"hub.json": b"{}", "hub-1.safetensors": source}
    made = write_version(tmp_path / "echo-1", EDGE, EDGE_FILES, part_manifest(weights=SHARDS[:1]), files)
    assert (made.path / "hub" / "hub-1.safetensors").stat().st_ino == source.stat().st_ino
    open_hub_part(made.path, made.manifest).verify_weights()


def test_a_file_of_another_disk_is_copied(tmp_path, monkeypatch):
    def refuse_link(*_args: object, **_kwargs: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    source = tmp_path / "big.safetensors"
    source.write_bytes(WEIGHTS)
    monkeypatch.setattr(os, "link", refuse_link)
    files = {"hub.json": b"{}", "hub-1.safetensors": source}
    made = write_version(tmp_path / "echo-1", EDGE, EDGE_FILES, part_manifest(weights=SHARDS[:1]), files)
    assert (made.path / "hub" / "hub-1.safetensors").stat().st_ino != source.stat().st_ino
    open_hub_part(made.path, made.manifest).verify_weights()


def test_a_version_that_cannot_be_written_leaves_the_one_before(tmp_path, version):
    with pytest.raises(FileNotFoundError):
        write_version(version.path, EDGE, EDGE_FILES, part_manifest(), {**HUB_FILES, SHARDS[0]: tmp_path / "nowhere"})
    with pytest.raises(BundleError, match="files is impossible"):
        write_version(version.path, EDGE, EDGE_FILES, part_manifest(), {"hub.json": b"{}"})
    assert open_bundle(version.path).digest == version.digest
    assert [entry.name for entry in tmp_path.iterdir()] == ["echo-1"]


def test_the_hub_part_of_another_version_is_refused(tmp_path, version):
    newer = msgspec.structs.replace(EDGE, version=2)
    other = write_version(tmp_path / "echo-2", newer, EDGE_FILES, part_manifest(), HUB_FILES)
    (version.path / "hub").rename(tmp_path / "away")
    (other.path / "hub").rename(version.path / "hub")
    refused(version, "the hub part is of echo@2, the edge part of echo@1")


def test_a_hub_part_that_the_manifest_does_not_name_is_refused(tmp_path, version):
    files = {**HUB_FILES, "hub.json": b"[]"}
    other = write_version(tmp_path / "other", EDGE, EDGE_FILES, part_manifest(), files)
    (version.path / "hub").rename(tmp_path / "away")
    (other.path / "hub").rename(version.path / "hub")
    refused(version, "is not the hub part that the manifest of echo@1 names")


def test_a_hub_part_made_for_another_edge_part_is_refused(version):
    """Its own digest is right, as that of a manifest that someone wrote anew would be."""
    manifest = msgspec.structs.replace(version.manifest, temperature=2.0)
    with pytest.raises(BundleError, match="was made for another edge part of echo@1"):
        open_hub_part(version.path, manifest)


@pytest.mark.parametrize("name", ["part.json", "hub.json", "hub-2.safetensors"])
def test_a_missing_file_is_named(version, name):
    (version.path / "hub" / name).unlink()
    refused(version, f"{name}: ")


def test_an_extra_file_is_named(version):
    (version.path / "hub" / "more.bin").write_bytes(b"")
    refused(version, "'more.bin': not named by part.json")


def test_a_cut_shard_is_refused_before_it_is_read(version):
    os.truncate(version.path / "hub" / "hub-1.safetensors", 100)
    refused(version, "hub-1.safetensors: has 100 bytes, part.json says 10240")


@pytest.mark.parametrize("name", ["part.json", "hub.json", "hub-1.safetensors"])
def test_a_link_is_refused_even_to_the_right_bytes(tmp_path, version, name):
    (version.path / "hub" / name).rename(tmp_path / "elsewhere")
    (version.path / "hub" / name).symlink_to(tmp_path / "elsewhere")
    refused(version, f"{name}: is a link")


def test_a_linked_folder_is_refused(tmp_path, version):
    (version.path / "hub").rename(tmp_path / "elsewhere")
    (version.path / "hub").symlink_to(tmp_path / "elsewhere")
    refused(version, "is not there")


def test_a_pipe_does_not_make_the_reader_wait(version):
    (version.path / "hub" / "hub-1.safetensors").unlink()
    os.mkfifo(version.path / "hub" / "hub-1.safetensors")
    refused(version, "hub-1.safetensors: is not a plain file")


def test_a_changed_byte_of_a_shard_is_found_when_it_streams_by(version):
    place = version.path / "hub" / "hub-2.safetensors"
    place.write_bytes(b"x" + place.read_bytes()[1:])
    part = open_hub_part(version.path, version.manifest)
    with pytest.raises(BundleError, match=r"hub/?: hub-2.safetensors: its content is not what"):
        part.verify_weights()


def test_a_changed_graph_is_found_when_it_is_read(version):
    (version.path / "hub" / "hub.json").write_bytes(b"[]")
    part = open_hub_part(version.path, version.manifest)
    with pytest.raises(BundleError, match=r"hub.json: its content is not what"):
        part.read_file("hub.json")


def test_weights_are_never_read_whole(version):
    with pytest.raises(BundleError, match=r"no graph 'hub-1.safetensors'"):
        open_hub_part(version.path, version.manifest).read_file("hub-1.safetensors")


def test_a_shard_that_is_swapped_after_it_was_opened_changes_nothing(version):
    part = open_hub_part(version.path, version.manifest)
    with part.open_weights() as files:
        place = version.path / "hub" / "hub-1.safetensors"
        place.rename(place.with_name("old"))
        place.write_bytes(b"swapped")
        files.verify()


def test_who_streams_is_told_of_every_byte(version):
    told: list[int] = []
    open_hub_part(version.path, version.manifest).verify_weights(told.append)
    assert sum(told) == 2 * len(WEIGHTS)


def test_part_json_that_was_changed_is_refused(version):
    rewrite_part(version, parallel={"tensor": 4})
    refused(version, "is not the hub part that the manifest of echo@1 names")


def test_part_json_of_a_newer_format_asks_for_an_update(version):
    rewrite_part(version, format=2)
    refused(version, "format 2, this version reads 1 .*update this installation")


WHOLE = msgspec.structs.replace(
    part_manifest(), edge="0" * 64, files={name: PartFile("0" * 64, 1) for name in HUB_FILES}
)


def altered(**changes) -> HubManifest:
    return msgspec.structs.replace(WHOLE, **changes)


IMPOSSIBLE = {
    "name": altered(name="../x"),
    "version": altered(version=0),
    "edge": altered(edge="short"),
    "kind": altered(kind=HubKind.ONNX),
    "kind ": altered(whole="whole.onnx"),
    "kind  ": altered(weights=()),
    "files": altered(weights=("hub-1.safetensors",)),
    "files ": altered(weights=(*SHARDS, SHARDS[0])),
    "files  ": altered(graph="other.json"),
    "digests or sizes": altered(files={**WHOLE.files, "hub.json": PartFile("x", 1)}),
    "digests or sizes ": altered(files={**WHOLE.files, "hub.json": PartFile("0" * 64, -1)}),
    "digests or sizes  ": altered(files={**WHOLE.files, "hub.json": PartFile("0" * 64, 1 << 50)}),
    "names": altered(weights=("../a", *SHARDS), files={**WHOLE.files, "../a": PartFile("0" * 64, 1)}),
    "parallel": altered(parallel=ParallelPlan(tensor=-1)),
    "style or shard": altered(parallel=ParallelPlan(style="dtensor")),
}


@pytest.mark.parametrize("key", IMPOSSIBLE)
def test_an_impossible_value_is_named(key):
    with pytest.raises(BundleError, match=key.strip()):
        check_hub_manifest(IMPOSSIBLE[key])


def test_part_json_comes_back_as_it_was_written():
    assert decode_hub_manifest(encode_hub_manifest(WHOLE)) == WHOLE


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_arbitrary_bytes_raise_a_bundle_error_of_one_line(data):
    with pytest.raises(BundleError) as caught:
        decode_hub_manifest(data)
    assert "\n" not in str(caught.value)


@given(st.data())
def test_one_damaged_value_never_gives_another_error(data):
    values = json.loads(encode_hub_manifest(WHOLE))
    key = data.draw(st.sampled_from(sorted(values)))
    values[key] = data.draw(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just([])
    )
    with suppress(BundleError):  # anything else fails the test
        decode_hub_manifest(json.dumps(values).encode())


def test_the_hub_files_of_format_2_are_shown_as_a_hub_part(made):
    part: HubPart = open_hub_part(made.path, made.manifest)
    assert (part.path, part.digest, part.manifest.model) == (made.path, made.digest, "echo@1")
    assert part.read_file("hub.json") == b"{}"
    part.verify_weights()
    (made.path / "hub.safetensors").write_bytes(b"changed")
    with pytest.raises(BundleError, match=r"hub.safetensors: its content is not what"):
        part.verify_weights()
