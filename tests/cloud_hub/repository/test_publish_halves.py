"""A bundle and its hub part are published, withdrawn, revoked and signed together; devices get the bundle alone."""

import errno
import itertools
import json
import os
import resource
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from cloud_hub.cli.publish import prepare_bundle
from cloud_hub.repository import files
from cloud_hub.repository.publish import (
    BundleOptions,
    publish_bundle,
    revoke_published,
    unlist_target,
)
from cloud_hub.rollout.catalog import BundleTargets
from models.bundle.archive import pack_bundle
from models.bundle.manifest import BundleError
from models.signing import review
from models.signing.request import RequestError
from models.update.client import RepositorySource, UpdateClient
from models.update.poll import PollRequest, list_available_targets, poll_repository
from models.update.slots import Store
from tests.cloud_hub.doubles.fleet import NOW, Device, FolderFetcher, Holder, Hub, carried
from tests.cloud_hub.doubles.versions import HUB_BYTES, HUB_FILES, SHARDS, build_hub_files, make_joint, make_version
from tests.cloud_hub.repository.test_publish_crash import CrashError, dying
from tests.live.doubles.texts import make_bundle
from wire.process.exit_codes import ExitCode, ExitError

EDGE, HUB = "models/echo/echo-1.skb", "models/echo/echo-1.hub.json"


@pytest.fixture
def hub(begun_hub):
    """The family's key is at the hub."""
    return begun_hub


@pytest.fixture
def version(tmp_path):
    return make_version(tmp_path / "echo-1")


def listed(hub):
    return hub.repository.read_state().base["models-echo"].signed.targets


def metadata_version(hub):
    return hub.repository.read_state().base["models-echo"].signed.version


def parts_of(hub):
    folder = hub.repository.shelf.parts.folder
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_both_halves_are_listed_in_one_change_and_name_each_other(hub, version):
    before = metadata_version(hub)
    published = publish_bundle(hub.repository, version.path, NOW)
    assert published.hub
    assert metadata_version(hub) == before + 1
    edge, part = listed(hub)[EDGE], listed(hub)[HUB]
    assert edge.hashes["sha256"] == published.sha256 == sha256(pack_bundle(version)).hexdigest()
    assert edge.custom["hub"] == part.hashes["sha256"] == version.manifest.hub_part == published.hub.sha256
    assert part.custom == {
        "version": 1,
        "part": "hub",
        "edge": published.sha256,
        "size_bytes": HUB_BYTES,
        "files": len(HUB_FILES),
    }
    description = (version.path / "hub" / "part.json").read_bytes()
    assert parts_of(hub) == {sha256(data).hexdigest(): data for data in (description, *HUB_FILES.values())}
    assert list(hub.repository.shelf.targets.rglob("*.hub.json")) == []


def test_the_weights_are_linked_and_take_no_room_twice(hub, version):
    publish_bundle(hub.repository, version.path, NOW)
    shard = version.path / "hub" / SHARDS[0]
    place = hub.repository.shelf.parts.locate(sha256(shard.read_bytes()).hexdigest())
    assert place.stat().st_ino == shard.stat().st_ino


def test_the_same_version_again_is_no_change_and_mends_what_was_lost(hub, version):
    publish_bundle(hub.repository, version.path, NOW)
    before, held = metadata_version(hub), parts_of(hub)
    shutil.rmtree(hub.repository.shelf.parts.folder)
    assert not publish_bundle(hub.repository, version.path, NOW).new
    assert (metadata_version(hub), parts_of(hub)) == (before, held)


def test_progress_is_told_in_bytes_of_the_hub_part(hub, version):
    told = []
    publish_bundle(hub.repository, version.path, NOW, BundleOptions(progress=lambda *each: told.append(each)))
    looked_at = sum(len(HUB_FILES[name]) for name in SHARDS)
    assert told[-1] == (HUB_BYTES + looked_at, HUB_BYTES + looked_at), "hashed, and the weights looked at"


def test_withdrawing_and_revoking_take_both_halves(tmp_path, hub, version):
    publish_bundle(hub.repository, version.path, NOW)
    before = metadata_version(hub)
    revoke_published(hub.repository, EDGE, NOW)
    assert [listed(hub)[path].custom["revoked"] for path in (EDGE, HUB)] == [True, True]
    publish_bundle(hub.repository, make_version(tmp_path / "echo-2", version=2).path, NOW)
    unlist_target(hub.repository, EDGE, NOW)
    assert listed(hub).keys() == {"models/echo/echo-2.skb", "models/echo/echo-2.hub.json"}
    assert metadata_version(hub) == before + 3


@pytest.mark.parametrize("act", [unlist_target, revoke_published])
def test_no_half_is_withdrawn_or_revoked_alone(hub, version, act):
    publish_bundle(hub.repository, version.path, NOW)
    with pytest.raises(RequestError, match=rf"name the bundle it belongs to, {EDGE}"):
        act(hub.repository, HUB, NOW)


@pytest.mark.further
def test_a_text_version_is_published_only_where_its_language_model_is(tmp_path):
    hub = Hub(tmp_path / "hub")
    hub.install(Holder.begin(tmp_path / "ring", hub.export(hold=("policy", "models-triage")), families=("triage",)))
    folder = make_bundle(tmp_path).path
    with pytest.raises(RequestError, match=r"'chat', \[\[llm\]\] of hub.toml has other: add it"):
        publish_bundle(hub.repository, folder, NOW, BundleOptions(language_models={"other"}))
    assert parts_of(hub) == {}
    published = publish_bundle(hub.repository, folder, NOW, BundleOptions(language_models={"other", "chat"}))
    assert published.request is None
    assert published.hub is not None
    assert not publish_bundle(hub.repository, folder, NOW).new


def test_a_bundle_of_the_older_format_is_published_as_before(tmp_path, hub):
    published = publish_bundle(hub.repository, make_joint(tmp_path / "echo-1").path, NOW)
    assert published.hub is None
    assert listed(hub).keys() == {EDGE}
    assert "hub" not in listed(hub)[EDGE].custom
    assert parts_of(hub) == {}


@pytest.mark.parametrize("damage", ["missing", "shard_missing", "shard_changed", "of_another_version"])
def test_a_version_whose_hub_part_is_wrong_is_not_published(tmp_path, hub, version, damage):
    folder = version.path / "hub"
    if damage == "missing":
        shutil.rmtree(folder)
    elif damage == "shard_missing":
        (folder / SHARDS[1]).unlink()
    elif damage == "shard_changed":
        (folder / SHARDS[1]).write_bytes(bytes(len(HUB_FILES[SHARDS[1]])))
    else:
        shutil.rmtree(folder)
        shutil.copytree(make_version(tmp_path / "echo-2", version=2).path / "hub", folder)
    with pytest.raises(BundleError) as caught:
        publish_bundle(hub.repository, version.path, NOW)
    assert len(str(caught.value).splitlines()) == 1
    assert EDGE not in listed(hub)
    assert parts_of(hub) == {}


def lie_in_header(weights):
    return weights.replace(b'"data_offsets":[0,', b'"data_offsets":[4,', 1)


def hold_nan(weights):
    return weights[:-4] + np.float32("nan").tobytes()


def leave_a_tensor_out(weights):
    return save({"w0": load(weights)["w0"]})


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lie_in_header, rf"echo@1: weights: {SHARDS[0]}: is not a safetensors file: bytes 4 to"),
        (hold_nan, "echo@1: weights: w1 holds NaN"),
        (leave_a_tensor_out, "echo@1: weights: missing or too many: w1"),
    ],
)
def test_a_version_that_no_hub_could_load_is_not_published_however_well_it_is_signed(tmp_path, hub, damage, why):
    sound, shard = build_hub_files(256, 256), SHARDS[0]
    version = make_version(tmp_path / "echo-1", {**sound, shard: damage(sound[shard])})
    with pytest.raises(BundleError, match=why) as caught:
        publish_bundle(hub.repository, version.path, NOW)
    assert len(str(caught.value).splitlines()) == 1
    assert EDGE not in listed(hub)
    assert parts_of(hub) == {}
    publish_bundle(hub.repository, version.path, NOW, BundleOptions(check_weights=False))
    assert listed(hub).keys() == {EDGE, HUB}


def test_graphs_for_another_edge_part_are_not_published(tmp_path, hub):
    made = make_version(tmp_path / "other", build_hub_files(256, labels=11))
    with pytest.raises(
        BundleError, match=r"echo@1: graph tail: takes float32 \[11\], the manifest says float32 \[10\]"
    ):
        publish_bundle(hub.repository, made.path, NOW)
    assert parts_of(hub) == {}


def fill_after(monkeypatch, files_written):
    """The disk takes so many more files, then no other."""
    written = iter(range(files_written))

    def replace(path, target):
        if next(written, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.rename(target)

    monkeypatch.setattr(Path, "replace", replace)


def test_a_disk_that_fills_at_any_file_lists_neither_half_and_the_command_can_be_repeated(tmp_path, hub, version):
    for count in itertools.count():
        copy = hub.copy(tmp_path / f"copy-{count}")
        with pytest.MonkeyPatch.context() as patch:
            fill_after(patch, count)
            try:
                publish_bundle(copy.repository, version.path, NOW)
                break
            except ExitError as stop:
                said = str(stop)
        assert said.endswith(": No space left on device")
        assert len(said.splitlines()) == 1
        assert listed(copy).keys() == set()
        assert Device(tmp_path / f"device-{count}", copy).sees(EDGE) == 0
        publish_bundle(copy.repository, version.path, NOW)
        assert listed(copy).keys() == {EDGE, HUB}
    assert count == len(HUB_FILES) + 2 + 3, "its files, both targets, then role, snapshot and timestamp"


def test_a_disk_without_room_for_a_copy_keeps_nothing_of_it(hub, version, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *_, **__: fail(errno.EXDEV))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        with pytest.raises(ExitError) as stop:
            publish_bundle(hub.repository, version.path, NOW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stop.value.code is ExitCode.DISK
    assert parts_of(hub) == {}
    assert listed(hub).keys() == set()


def fail(number):
    raise OSError(number, os.strerror(number))


def test_a_crash_at_any_step_lists_both_halves_or_neither(tmp_path, hub, version):
    for steps in itertools.count():
        copy = hub.copy(tmp_path / f"crash-{steps}")
        try:
            publish_bundle(dying(copy, steps), version.path, NOW)
        except CrashError:
            assert listed(copy).keys() in ({EDGE, HUB}, set())
            publish_bundle(copy.repository, version.path, NOW)
            assert listed(copy).keys() == {EDGE, HUB}
        else:
            break
    assert steps >= 2


def test_where_the_familys_key_is_elsewhere_the_request_shows_both_halves_and_installs_both(tmp_path, version):
    hub = Hub(tmp_path / "apart")
    hub.install(Holder.begin(tmp_path / "ring", hub.export()))
    published = publish_bundle(hub.repository, version.path, NOW)
    assert published.request
    assert published.hub
    lines = "\n".join(review.describe_request(published.request))
    assert f"adds {EDGE} sha256 {published.sha256}" in lines
    assert f"adds {HUB} sha256 {published.hub.sha256} hub part of {HUB_BYTES} B in {len(HUB_FILES)} files" in lines
    assert listed(hub).keys() == set()
    signed = Holder(tmp_path / "ring").sign(carried(published.request))
    shard = hub.repository.shelf.parts.locate(sha256(HUB_FILES[SHARDS[0]]).hexdigest())
    shard.rename(tmp_path / "away")
    with pytest.raises(RequestError, match="its bytes are not at this hub"):
        hub.install(signed)
    (tmp_path / "away").rename(shard)
    hub.install(signed)
    assert listed(hub).keys() == {EDGE, HUB}


def test_pruning_keeps_the_files_of_listed_versions_and_nothing_else(tmp_path, hub, version, monkeypatch):
    publish_bundle(hub.repository, version.path, NOW)
    kept = parts_of(hub).keys()
    other = make_version(tmp_path / "echo-2", build_hub_files(64, 256), version=2)
    publish_bundle(hub.repository, other.path, NOW)
    unlist_target(hub.repository, "models/echo/echo-2.skb", NOW)
    monkeypatch.setattr(files, "UNLISTED_LIFE_S", -1.0)
    for _ in range(files.KEPT_VERSIONS - 1):  # until no kept metadata lists version 2
        assert len(parts_of(hub)) > len(kept)
        hub.repository.amend_role("models-echo", lambda targets: None, NOW)
    assert parts_of(hub).keys() == kept


def poll(folder, hub):
    fetcher = FolderFetcher(hub.folder / "repository")
    source = RepositorySource("metadata/", "targets", hub.repository.read_root())
    with Store(folder) as store:
        result = poll_repository(
            UpdateClient(store.metadata, source, fetcher, NOW.timestamp), store, PollRequest(family="echo")
        )
        assert result.refusals == ()
        assert result.staged
        store.activate(result.staged)
        assert store.current
        return store.open_slot(store.current)


def test_a_device_fetches_and_stores_the_bundle_alone(tmp_path, hub, version):
    publish_bundle(hub.repository, version.path, NOW)
    bundle = poll(tmp_path / "device", hub)
    assert bundle.digest == version.digest
    held = [path for path in (tmp_path / "device").rglob("*") if path.is_file()]
    assert not any(data in path.read_bytes() for path in held for data in HUB_FILES.values() if len(data) > 2)
    stored = sum(path.stat().st_size for path in bundle.path.rglob("*"))
    assert stored <= 1.01 * len(pack_bundle(version))


def test_a_hub_that_was_taken_over_cannot_hand_a_device_the_hub_part_as_a_bundle(tmp_path, hub, version):
    publish_bundle(hub.repository, version.path, NOW)
    offers = list_available_targets(Device(tmp_path / "device", hub).poll(), "echo")
    assert [offer.path for offer in offers] == [EDGE]


def test_a_rollout_counts_versions_and_not_halves(tmp_path, hub, version):
    publish_bundle(hub.repository, version.path, NOW)
    targets = BundleTargets(hub.repository, lambda _: {}, lambda: 0)
    assert targets.find_target("echo@1")[1].path == EDGE
    assert targets.find_previous("echo", 1) is None
    assert targets.committed_versions([]) == {}
    publish_bundle(hub.repository, make_version(tmp_path / "echo-2", version=2).path, NOW)
    before = targets.find_previous("echo", 2)
    assert before
    assert before.path == EDGE
    assert targets.committed_versions([]) == {"echo": 2}


def test_a_rollouts_bundle_is_published_and_laid_where_the_hub_serves_with_its_hub_part(tmp_path, hub, version):
    models = tmp_path / "models"
    models.mkdir()
    (hub.folder / "keys").mkdir()
    shutil.move(hub.folder / "online", hub.folder / "keys" / "online")
    config = tmp_path / "hub.toml"
    config.write_text(f"state = {json.dumps(str(hub.folder))}\nmodels_folder = {json.dumps(str(models))}\n")
    assert prepare_bundle(version.path, config, None) == "echo@1"
    assert listed(hub).keys() == {EDGE, HUB}
    assert (models / "echo@1" / "hub" / SHARDS[0]).read_bytes() == HUB_FILES[SHARDS[0]]
