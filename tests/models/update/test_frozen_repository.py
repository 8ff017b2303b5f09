"""A frozen update repository: a device of this release trusts what the first root of years ago leads to."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from models.bundle.archive import unpack_bundle
from models.bundle.bundle import open_edge_part
from models.runtime.golden import check_golden
from models.runtime.onnx_runner import OnnxRunner
from models.update.client import RefusedError, RepositorySource, UpdateClient
from tests.cloud_hub.doubles.fleet import FolderFetcher
from tests.second_implementation import artefacts, vectors

FOLDER = vectors.FOLDER / "tuf"
METADATA, TARGETS = FOLDER / "metadata", FOLDER / "targets"
FIRST_ROOT = (FOLDER / "first-root.json").read_bytes()
SIGNED = datetime(2026, 9, 21, 15, tzinfo=UTC)
BUNDLE, POLICY = "models/digits/digits-1.skb", "policy/demo.toml"


def poll(folder: Path, repository: Path = FOLDER, at: datetime = SIGNED) -> UpdateClient:
    source = RepositorySource("metadata/", "targets", FIRST_ROOT)
    return UpdateClient(folder, source, FolderFetcher(repository), at.timestamp)


def target_file(path: str, digest: str) -> Path:
    folder, _, name = path.rpartition("/")
    return TARGETS / folder / f"{digest}.{name}"


def test_a_device_of_this_release_follows_the_frozen_roots_to_bundle_policy_and_keys(tmp_path: Path) -> None:
    session = poll(tmp_path).refresh()
    for path, version in ((BUNDLE, 1), (POLICY, 2), ("keys/local.json", 1)):
        found = session.approved_target(path)
        assert found is not None, path
        assert found.info.custom["version"] == version
        assert target_file(path, found.info.hashes["sha256"]).stat().st_size == found.info.length


def test_frozen_metadata_is_refused_once_it_has_expired_and_after_a_byte_of_it_was_changed(tmp_path: Path) -> None:
    with pytest.raises(RefusedError):
        poll(tmp_path, at=SIGNED + timedelta(days=8)).refresh()
    shutil.copytree(FOLDER, changed := tmp_path / "changed")
    timestamp = changed / "metadata" / "timestamp.json"
    timestamp.write_bytes(timestamp.read_bytes().replace(b"1790002800000", b"1790002800001"))
    (tmp_path / "device").mkdir()
    with pytest.raises(RefusedError):
        poll(tmp_path / "device", changed).refresh()


def test_the_frozen_bundle_answers_as_it_did_when_it_was_forged(tmp_path: Path) -> None:
    (archive,) = (TARGETS / "models" / "digits").glob("*.skb")
    with archive.open("rb") as source:
        assert f"{unpack_bundle(source, tmp_path)}.digits-1.skb" == archive.name
    bundle = open_edge_part(tmp_path)
    assert check_golden(bundle, OnnxRunner(bundle)).passed


def test_the_second_implementation_follows_the_chain_by_json_and_ed25519_alone() -> None:
    root = FIRST_ROOT
    for version in (1, 2):
        newer = (METADATA / f"{version}.root.json").read_bytes()
        assert artefacts.check_tuf_role(newer, root, "root")["version"] == version
        assert artefacts.check_tuf_role(newer, newer, "root")["version"] == version
        root = newer
    timestamp = artefacts.check_tuf_role((METADATA / "timestamp.json").read_bytes(), root, "timestamp")
    assert timestamp["skerry_signed_ms"] == SIGNED.timestamp() * 1000
    listed = timestamp["meta"]["snapshot.json"]
    data = (METADATA / f"{listed['version']}.snapshot.json").read_bytes()
    artefacts.check_tuf_file(listed, data)
    snapshot = artefacts.check_tuf_role(data, root, "snapshot")["meta"]
    found = {name: (METADATA / f"{each['version']}.{name}").read_bytes() for name, each in snapshot.items()}
    for name, each in snapshot.items():
        artefacts.check_tuf_file(each, found[name])
    artefacts.check_tuf_role(found["targets.json"], root, "targets")
    for role in ("keys", "policy", "models-digits"):
        signed = artefacts.check_tuf_role(found[f"{role}.json"], found["targets.json"], role)
        for path, described in signed["targets"].items():
            if described["custom"].get("part") == "hub":
                continue  # served to hubs, from a folder of its own
            artefacts.check_tuf_file(described, target_file(path, described["hashes"]["sha256"]).read_bytes())


def test_the_second_implementation_refuses_metadata_that_too_few_keys_signed() -> None:
    document = json.loads((METADATA / "2.root.json").read_bytes())
    document["signatures"] = document["signatures"][:1]
    with pytest.raises(ValueError, match="signatures"):
        artefacts.check_tuf_role(json.dumps(document).encode(), FIRST_ROOT, "root")


def test_what_was_frozen_is_what_its_names_say() -> None:
    for path in TARGETS.rglob("*.*"):
        if path.is_file():
            assert path.name.startswith(sha256(path.read_bytes()).hexdigest())
