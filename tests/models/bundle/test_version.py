"""Writing of versions: what is written reads back bound, whatever its numbers were, and old bundles gain two parts."""

import json

import msgspec
import pytest

from models.bundle.archive import pack_bundle
from models.bundle.bundle import open_bundle, open_edge_part
from models.bundle.hub_part import HubKind, open_hub_part
from models.bundle.manifest import (
    FORMAT,
    JOINT_FORMAT,
    NO_HUB,
    BundleError,
    HubModel,
    ParallelPlan,
    PipelineStage,
    digest_edge,
    encode_manifest,
)
from models.bundle.version import rewrite_version, write_version
from tests.models.bundle.test_hub_part import EDGE, EDGE_FILES, HUB_FILES, part_manifest
from tests.models.bundles import write_bundle
from tests.models.conftest import contents, make

PLAN = ParallelPlan((PipelineStage("first", 10, (4,)),), tensor=2)


def test_a_manifest_made_with_whole_numbers_binds_as_it_is_read_back(tmp_path):
    """JSON knows 0 and 0.0 apart and a reader of a float does not: the digest is of what a reader has."""
    spec = msgspec.structs.replace(EDGE.input, low=0, high=1)
    manifest = msgspec.structs.replace(EDGE, input=spec, temperature=1, hub_temperature=2)
    made = write_version(tmp_path / "echo-1", manifest, EDGE_FILES, part_manifest(), HUB_FILES)
    assert open_hub_part(made.path, made.manifest).manifest.edge == digest_edge(made.manifest)
    assert encode_manifest(made.manifest) == (made.path / "manifest.json").read_bytes()
    pack_bundle(made)


def test_an_old_bundle_is_split_into_two_parts_with_the_same_files(tmp_path):
    old = make(tmp_path / "old", parallel=PLAN)
    assert old.manifest.format == JOINT_FORMAT
    hub_files = set(old.manifest.hub.files)
    new = rewrite_version(old, old.manifest, tmp_path / "new")
    part = open_hub_part(new.path, new.manifest)
    assert (new.manifest.format, new.manifest.model, new.manifest.parallel) == (FORMAT, "echo@1", ParallelPlan())
    assert (part.manifest.parallel, part.manifest.kind) == (PLAN, HubKind.GRAPHS)
    assert part.manifest.files.keys() == hub_files
    part.verify_weights()
    for name in hub_files:
        assert (part.path / name).samefile(old.path / name), "linked, not copied"
    for name in new.manifest.files:
        assert new.read_file(name) == old.read_file(name)
    assert open_bundle(old.path).digest == old.digest != new.digest
    assert len(pack_bundle(new)) < len(pack_bundle(old))


def test_an_old_bundle_of_onnx_is_split_too(tmp_path):
    files = {**contents(), "tail.onnx": b"tail", "whole.onnx": b"whole"}
    manifest = make(tmp_path / "other").manifest
    manifest = msgspec.structs.replace(manifest, hub=HubModel("tail.onnx", (), "whole.onnx"))
    old = write_bundle(
        tmp_path / "old", manifest, {n: files[n] for n in ("edge.onnx", "golden.npz", *manifest.hub.files)}
    )
    part = open_hub_part(tmp_path / "old", rewrite_version(old, old.manifest).manifest)
    assert (part.manifest.kind, part.manifest.whole) == (HubKind.ONNX, "whole.onnx")
    assert part.read_file("tail.onnx") == b"tail"


def test_a_version_is_written_again_in_its_own_place_with_what_its_manifest_gained(tmp_path):
    made = write_version(tmp_path / "echo-1", EDGE, EDGE_FILES, part_manifest(), HUB_FILES, report=b"{}")
    again = rewrite_version(made, msgspec.structs.replace(made.manifest, temperature=2.0))
    assert (again.path, again.manifest.temperature, again.report) == (made.path, 2.0, b"{}")
    assert open_hub_part(again.path, again.manifest).manifest.files.keys() == HUB_FILES.keys()
    assert again.digest != made.digest


@pytest.mark.parametrize("joint", [True, False])
def test_a_hub_part_that_was_changed_is_not_made_valid_by_writing_it_again(tmp_path, joint):
    if joint:
        made = make(tmp_path / "echo-1")
        place = made.path / "hub.safetensors"
    else:
        made = write_version(tmp_path / "echo-1", EDGE, EDGE_FILES, part_manifest(), HUB_FILES)
        place = made.path / "hub" / "hub-2.safetensors"
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.write_bytes(data)
    with pytest.raises(BundleError, match=f"{place.name}: its content is not what the manifest promises"):
        rewrite_version(made, made.manifest)
    assert [path.name for path in tmp_path.iterdir()] == ["echo-1"]
    assert json.loads((made.path / "manifest.json").read_bytes())["format"] == made.manifest.format


def test_the_edge_part_of_an_old_bundle_opens_without_reading_the_hubs_files(tmp_path):
    made = make(tmp_path / "echo-1")
    (made.path / "hub.safetensors").write_bytes(b"changed")
    edge = open_edge_part(made.path)
    assert edge.digest == made.digest
    with pytest.raises(BundleError, match=r"no file 'hub.safetensors'"):
        edge.read_file("hub.safetensors")
    with pytest.raises(BundleError, match=r"hub.safetensors: its content is not what"):
        open_bundle(made.path)


def test_no_hub_is_left_in_the_manifest_of_a_split_bundle(tmp_path):
    made = rewrite_version(make(tmp_path / "old"), make(tmp_path / "other").manifest, tmp_path / "new")
    assert made.manifest.hub == NO_HUB
    assert "hub" not in json.loads((made.path / "manifest.json").read_bytes())
