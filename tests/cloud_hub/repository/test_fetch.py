"""A hub fetches a version from another hub's repository: verified, resumed, placed in one step, or nothing at all."""

import errno
import os
import shutil
from hashlib import sha256
from typing import NamedTuple

import pytest

from cloud_hub.repository import fetch
from cloud_hub.repository.fetch import fetch_version
from cloud_hub.repository.publish import publish_bundle, revoke_published, unlist_target
from cloud_hub.repository.source import VersionSource
from models.bundle.bundle import open_bundle
from models.bundle.hub_part import open_hub_part
from tests.cloud_hub.doubles.fleet import NOW
from tests.cloud_hub.doubles.versions import HUB_BYTES, SHARDS, build_hub_files, make_joint, make_version
from tests.models.doubles.mirror import Faults, Mirror
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError

FILES = build_hub_files(256, 256, 65_536)
BIG = FILES["hub-3.safetensors"]  # 5 MB: many pieces
DIGEST = sha256(BIG).hexdigest()


class Usage(NamedTuple):
    """What `shutil.disk_usage` says, as far as it is read."""

    free: int


@pytest.fixture
def hub(begun_hub):
    return begun_hub


@pytest.fixture
def version(tmp_path, hub):
    made = make_version(tmp_path / "made", FILES)
    publish_bundle(hub.repository, made.path, NOW)
    return made


@pytest.fixture
def mirror(hub, version):
    with Mirror(served(hub)) as mirror:
        yield mirror


@pytest.fixture
def source(tmp_path, hub, mirror):
    """Trusted already."""
    found = VersionSource(mirror.url.rstrip("/"), tmp_path / "trust", "key")
    found.trust_root(sha256(hub.repository.read_root()).hexdigest())
    return found


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def served(hub):
    folder = hub.folder / "repository"
    files = (path for name in ("metadata", "targets", "parts") for path in (folder / name).rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.is_file()}


def refused(source, models, code, words, model="echo@1"):
    """It ends in one line with this code, and the models folder is as it was."""
    before = sorted(path.name for path in models.iterdir() if not path.name.startswith("."))
    with pytest.raises(ExitError, match=words) as caught:
        fetch_version(source, models, model)
    assert caught.value.code is code
    assert len(str(caught.value).splitlines()) == 1
    assert sorted(path.name for path in models.iterdir() if not path.name.startswith(".")) == before


def assert_whole(models, version):
    bundle = open_bundle(models / "echo@1")
    assert bundle.digest == version.digest
    part = open_hub_part(models / "echo@1", bundle.manifest)
    part.verify_weights()
    assert [path.name for path in models.iterdir()] == ["echo@1"]


def test_both_parts_arrive_as_one_folder_and_a_second_fetch_finds_them_there(source, models, version):
    found = fetch_version(source, models, "echo@1")
    assert_whole(models, version)
    assert (found.model, found.folder, found.new) == ("echo@1", models / "echo@1", True)
    assert found.size_bytes == found.received_bytes - len((version.path / "hub/part.json").read_bytes())
    assert found.size_bytes > HUB_BYTES + len(BIG)
    again = fetch_version(source, models, "echo@1")
    assert (again.new, again.received_bytes) == (False, 0)


def test_an_older_bundle_with_its_hub_files_inside_is_fetched_too(tmp_path, hub, source, mirror, models):
    made = make_joint(tmp_path / "echo-2", version=2)
    publish_bundle(hub.repository, made.path, NOW)
    mirror.files = served(hub)
    fetch_version(source, models, "echo@2")
    assert open_bundle(models / "echo@2").digest == made.digest


def test_a_fetch_that_was_killed_goes_on_where_it_stopped(source, mirror, models, version):
    def die(done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_version(source, models, "echo@1", die)
    assert [path.name for path in models.iterdir()] == [".fetch-echo@1"]
    first = mirror.sent_bytes
    found = fetch_version(source, models, "echo@1")
    assert_whole(models, version)
    assert found.received_bytes < found.size_bytes * 0.6
    assert any(ranges.startswith("bytes=") for path, ranges in mirror.requests if DIGEST in path)
    assert first + found.received_bytes < found.size_bytes * 1.3


def test_a_download_that_is_cut_again_and_again_is_put_together(source, mirror, models, version):
    mirror.faults = Faults(where=DIGEST, cuts=[1_000_000, 300_000, 2_000_000])
    found = fetch_version(source, models, "echo@1")
    assert_whole(models, version)
    assert found.received_bytes < found.size_bytes * 1.01


def test_what_other_versions_on_the_disk_have_is_not_fetched_again(tmp_path, hub, source, mirror, models):
    fetch_version(source, models, "echo@1")
    tuned = {**FILES, "hub.json": FILES["hub.json"] + b"\n"}
    publish_bundle(hub.repository, make_version(tmp_path / "echo-2", tuned, version=2).path, NOW)
    mirror.files = served(hub)
    found = fetch_version(source, models, "echo@2")
    assert found.received_bytes < 100_000 < found.size_bytes
    linked = [(models / name / "hub" / "hub-3.safetensors").stat().st_ino for name in ("echo@1", "echo@2")]
    assert len(set(linked)) == 1


def test_a_file_that_is_damaged_in_another_version_is_fetched_and_not_linked(tmp_path, hub, source, mirror, models):
    fetch_version(source, models, "echo@1")
    (models / "echo@1" / "hub" / "hub-3.safetensors").write_bytes(bytes(len(BIG)))
    tuned = {**FILES, "hub.json": FILES["hub.json"] + b"\n"}
    publish_bundle(hub.repository, make_version(tmp_path / "echo-2", tuned, version=2).path, NOW)
    mirror.files = served(hub)
    assert fetch_version(source, models, "echo@2").received_bytes > len(BIG)
    open_hub_part(models / "echo@2", open_bundle(models / "echo@2").manifest).verify_weights()


@pytest.mark.parametrize("name", [SHARDS[0], "part.json", "edge"])
def test_bytes_that_are_not_those_that_were_promised_are_refused(source, mirror, models, version, name):
    wanted = version.path / "hub" / name
    digest = sha256(wanted.read_bytes()).hexdigest() if wanted.exists() else "echo-1.skb"
    (path,) = [path for path in mirror.files if digest in path]
    mirror.files[path] = bytes(len(mirror.files[path]))
    refused(source, models, ExitCode.CHECK_FAILED, "not those that were promised")


def test_a_hub_part_of_another_version_behind_valid_signatures_is_refused(tmp_path, hub, source, mirror, models):
    """Who holds the family's key lists a hub part that was made for another bundle."""
    other = make_version(tmp_path / "other", temperature=2.0)
    description = (other.path / "hub" / "part.json").read_bytes()

    def swap(targets):
        edge, part = targets.targets["models/echo/echo-1.skb"], targets.targets["models/echo/echo-1.hub.json"]
        part.hashes["sha256"] = edge.custom["hub"] = sha256(description).hexdigest()
        part.length = len(description)

    hub.repository.amend_role("models-echo", swap, NOW)
    mirror.files = served(hub) | {f"parts/{sha256(description).hexdigest()}": description}
    refused(source, models, ExitCode.CHECK_FAILED, "is not the hub part that the manifest of echo@1 names")


def test_a_size_that_nobody_signed_is_refused(hub, source, mirror, models):
    def shrink(targets):
        targets.targets["models/echo/echo-1.hub.json"].custom["size_bytes"] = 10

    hub.repository.amend_role("models-echo", shrink, NOW)
    mirror.files = served(hub)
    refused(source, models, ExitCode.CHECK_FAILED, "another size than was signed")


def test_what_is_withdrawn_revoked_or_never_was_is_not_fetched(hub, source, mirror, models):
    refused(source, models, ExitCode.NOT_FOUND, "echo@2 is not published there", "echo@2")
    refused(source, models, ExitCode.USAGE, "name one version", "echo")
    revoke_published(hub.repository, "models/echo/echo-1.skb", NOW)
    mirror.files = served(hub)
    refused(source, models, ExitCode.CHECK_FAILED, "revoked there")
    unlist_target(hub.repository, "models/echo/echo-1.skb", NOW)
    mirror.files = served(hub)
    refused(source, models, ExitCode.NOT_FOUND, "not published there")


def test_without_the_operators_key_only_the_hub_part_is_refused_and_what_to_do_is_said(source, mirror, models):
    mirror.faults = Faults(where="parts/", status=404)
    refused(source, models, ExitCode.CREDENTIALS, "hub key create NAME --scope operate")


def test_a_shard_that_the_other_hub_lost_is_named(source, mirror, models):
    del mirror.files[f"parts/{DIGEST}"]
    refused(source, models, ExitCode.CHECK_FAILED, f"{DIGEST}: that hub does not have it")


def test_a_hub_that_does_not_answer_is_one_line_and_what_came_is_kept(source, mirror, models, monkeypatch):
    monkeypatch.setattr("models.update.downloader.RETRY_PAUSE_S", 0.001)
    mirror.faults = Faults(where=DIGEST, cuts=[1_000_000] + [0] * 10)
    refused(source, models, ExitCode.HUB, "the same command goes on")
    mirror.faults = Faults(where="\0")
    assert fetch_version(source, models, "echo@1").received_bytes < len(BIG)


def test_a_disk_without_room_is_found_before_the_weights_are_fetched(source, mirror, models, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free=fetch.SPARE_BYTES + len(BIG)))
    refused(source, models, ExitCode.DISK, "bytes are needed")
    assert list(models.iterdir()) == []
    assert not any(DIGEST in path for path, _ in mirror.requests)


def test_a_disk_that_fills_while_it_arrives_is_one_line_and_freed_again(source, models, monkeypatch):
    def full(self, data):
        if self.size + len(data) > 1_000_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.file.write(data)
        self.size += len(data)

    monkeypatch.setattr("models.update.partial_download.PartialDownload.append", full)
    refused(source, models, ExitCode.DISK, "No space left on device")
    assert list(models.iterdir()) == []


@pytest.mark.parametrize("damage", ["shard_missing", "hub_missing", "edge_changed"])
def test_a_damaged_folder_is_replaced_by_the_whole_version(source, models, version, damage):
    fetch_version(source, models, "echo@1")
    place = models / "echo@1"
    if damage == "shard_missing":
        (place / "hub" / SHARDS[0]).unlink()
    elif damage == "hub_missing":
        shutil.rmtree(place / "hub")
    else:
        (place / "edge.onnx").write_bytes(b"damaged")
    assert fetch_version(source, models, "echo@1").new
    assert_whole(models, version)


def test_another_bundle_of_the_same_name_is_left_alone(tmp_path, source, models):
    make_version(models / "echo@1", temperature=2.0)
    refused(source, models, ExitCode.CHECK_FAILED, "holds another bundle of that name")
    assert open_bundle(models / "echo@1").manifest.temperature == 2.0


def test_two_fetches_of_one_version_do_not_meet(source, models):
    scratch = models / ".fetch-echo@1"
    scratch.mkdir()
    with FolderLock(scratch):
        refused(source, models, ExitCode.LOCKED, "in use by process")


def test_trust_begins_with_the_root_that_a_person_names_and_with_no_other(tmp_path, hub, mirror, models):
    source = VersionSource(mirror.url.rstrip("/"), tmp_path / "fresh", "key")
    refused(source, models, ExitCode.CREDENTIALS, "is not known here yet: say whose it is by --root")
    with pytest.raises(ExitError, match="has no root with this SHA-256") as caught:
        source.trust_root("0" * 64)
    assert caught.value.code is ExitCode.CREDENTIALS
    refused(source, models, ExitCode.CREDENTIALS, "is not known here yet")
    source.trust_root(sha256(hub.repository.read_root()).hexdigest())
    asked = len(mirror.requests)
    source.trust_root(sha256(hub.repository.read_root()).hexdigest())
    assert len(mirror.requests) == asked


def test_a_repository_that_goes_back_is_refused_although_every_signature_is_right(hub, source, mirror, models):
    fetch_version(source, models, "echo@1")
    old = dict(mirror.files)
    unlist_target(hub.repository, "models/echo/echo-1.skb", NOW)
    mirror.files = served(hub)
    refused(source, models, ExitCode.NOT_FOUND, "not published there")
    mirror.files = old
    refused(source, models, ExitCode.CHECK_FAILED, "rollback")
