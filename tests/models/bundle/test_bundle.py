"""Bundle folders: every way one can differ from the bundle that was written is refused with its own text."""

import json
import os
from hashlib import sha256

import pytest

from models.bundle import bundle
from models.bundle.bundle import open_bundle
from models.bundle.manifest import MAX_MANIFEST_BYTES, BundleError
from tests.models.conftest import contents, make


def rewrite(path, **changes):
    """Change the manifest as an attacker would who cannot change what was promised elsewhere."""
    values = json.loads((path / "manifest.json").read_bytes())
    (path / "manifest.json").write_text(json.dumps(values | changes))


def refused(path, words):
    with pytest.raises(BundleError, match=words) as caught:
        open_bundle(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_bundle_opens_to_the_bytes_that_were_written(made):
    again = open_bundle(made.path)
    assert {name: again.read_file(name) for name in again.manifest.files} == contents()
    assert again.digest == made.digest == sha256((made.path / "manifest.json").read_bytes()).hexdigest()


def test_the_same_content_gives_the_same_bytes(tmp_path, made):
    other = make(tmp_path / "other")
    assert other.digest == made.digest
    assert (other.path / "manifest.json").read_bytes() == (made.path / "manifest.json").read_bytes()


def test_the_report_is_beside_the_content_and_not_part_of_it(made):
    (made.path / "forge.json").write_text('{"forge_s": 1}')
    again = open_bundle(made.path)
    assert again.digest == made.digest
    assert again.report == b'{"forge_s": 1}'


def test_writing_replaces_an_older_bundle_and_leaves_nothing_beside_it(tmp_path, made):
    newer = make(made.path, version=2)
    assert open_bundle(made.path).manifest.version == newer.manifest.version == 2
    assert [entry.name for entry in tmp_path.iterdir()] == [made.path.name]


def test_an_impossible_manifest_is_not_written(tmp_path):
    with pytest.raises(BundleError):
        make(tmp_path / "bad", version=0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_swapped_after_the_check_changes_nothing(made):
    expected = contents()["edge.onnx"]
    (made.path / "edge.onnx").write_bytes(b"swapped")
    assert made.read_file("edge.onnx") == expected


def test_a_file_the_manifest_does_not_name_cannot_be_read(made):
    with pytest.raises(BundleError, match="no file"):
        made.read_file("../manifest.json")


@pytest.mark.parametrize("name", ["edge.onnx", "hub.json", "hub.safetensors", "golden.npz"])
def test_one_flipped_bit_is_found(made, name):
    data = bytearray((made.path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (made.path / name).write_bytes(data)
    refused(made.path, f"{name}: its content")


def test_a_truncated_file_is_found(made):
    os.truncate(made.path / "edge.onnx", 10)
    refused(made.path, "edge.onnx: its content")


def test_a_missing_file_is_named(made):
    (made.path / "golden.npz").unlink()
    refused(made.path, "golden.npz: named by the manifest, but missing")


def test_an_extra_file_is_named(made):
    (made.path / "run.py").write_text("print('hello')")
    refused(made.path, "'run.py': not named")


def test_an_extra_folder_is_named(made):
    (made.path / "more").mkdir()
    refused(made.path, "'more': not named")


def test_a_link_is_refused_even_to_the_right_bytes(made, tmp_path):
    (made.path / "edge.onnx").rename(tmp_path / "elsewhere")
    (made.path / "edge.onnx").symlink_to(tmp_path / "elsewhere")
    refused(made.path, "edge.onnx: is a link")


def test_a_linked_manifest_is_refused(made, tmp_path):
    (made.path / "manifest.json").rename(tmp_path / "elsewhere")
    (made.path / "manifest.json").symlink_to(tmp_path / "elsewhere")
    refused(made.path, "manifest.json: is a link")


def test_a_linked_report_is_refused(made):
    (made.path / "forge.json").symlink_to("/etc/hostname")
    refused(made.path, "forge.json: is a link")


def test_a_pipe_does_not_make_the_reader_wait(made):
    (made.path / "golden.npz").unlink()
    os.mkfifo(made.path / "golden.npz")
    refused(made.path, "golden.npz: is not a plain file")


def test_a_folder_in_a_files_place_is_refused(made):
    (made.path / "golden.npz").unlink()
    (made.path / "golden.npz").mkdir()
    refused(made.path, "golden.npz: is not a plain file")


def test_a_manifest_that_names_a_file_outside_is_refused(made):
    rewrite(made.path, files={**made.manifest.files, "../../secret": "0" * 64})
    refused(made.path, "files is impossible")


def test_an_oversized_file_is_refused_unread(made):
    os.truncate(made.path / "hub.safetensors", bundle.MAX_FILE_BYTES + 1)
    refused(made.path, "hub.safetensors: bigger than")


def test_an_oversized_manifest_is_refused(made):
    os.truncate(made.path / "manifest.json", MAX_MANIFEST_BYTES + 1)
    refused(made.path, "manifest.json: bigger than")


def test_an_unknown_key_is_refused(made):
    rewrite(made.path, hooks=["rm"])
    refused(made.path, "hooks")


def test_a_newer_format_asks_for_an_update(made):
    rewrite(made.path, format=4)
    refused(made.path, "newer version: update this installation")


def test_a_folder_without_manifest_is_not_a_bundle(tmp_path):
    refused(tmp_path, "not a bundle")


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_no_folder_there_is_said(tmp_path, name):
    (tmp_path / "file").write_text("")
    refused(tmp_path / name, "no bundle can be read there")
