"""A version whose halves do not belong together is not served, one line says why, and the version before serves on."""

import shutil
from pathlib import Path

import pytest

from cloud_hub.engine.base import EchoEngine, EngineError
from cloud_hub.engine.types import make_bundle_card
from cloud_hub.serving.bundles import BundleFolders
from cloud_hub.system.settings import HubSettings
from models.bundle.bundle import open_bundle
from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import BundleError
from tests.cloud_hub.doubles.versions import HUB_FILES, SHARDS, make_version


def open_checked(path: Path) -> EchoEngine:
    """An engine that reads all weights when it opens, as the real ones do, and computes nothing."""
    bundle = open_bundle(path)
    open_hub_part(path, bundle.manifest).verify_weights()
    return EchoEngine(make_bundle_card(bundle))


@pytest.fixture
def models(tmp_path):
    for version in (1, 2):
        make_version(tmp_path / "models" / f"echo@{version}", version=version)
    return tmp_path / "models"


def lose_part(hub):
    shutil.rmtree(hub)


def lose_shard(hub):
    (hub / SHARDS[0]).unlink()


def change_shard(hub):
    (hub / SHARDS[0]).write_bytes(bytes(len(HUB_FILES[SHARDS[0]])))


def swap_part(hub):
    shutil.rmtree(hub)
    shutil.copytree(hub.parent.parent / "echo@1" / "hub", hub)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lose_part, "the hub part of echo@2 is not there"),
        (lose_shard, f"{SHARDS[0]}: named by part.json, but missing"),
        (change_shard, f"{SHARDS[0]}: its content is not what the manifest promises"),
        (swap_part, "the hub part is of echo@1, the edge part of echo@2"),
    ],
)
@pytest.mark.parametrize("most", [0, 1])
def test_the_version_before_serves_and_one_line_says_why(models, damage, why, most):
    damage(models / "echo@2" / "hub")
    told: dict[Path, str] = {}
    folders = BundleFolders([], models, HubSettings(max_loaded=most), open_checked)
    engines = folders.open_initial(frozenset(), told.__setitem__)
    assert [engine.card.name for engine in engines] == ["echo@1"]
    assert list(told) == [models / "echo@2"]
    assert why in told[models / "echo@2"]
    assert len(told[models / "echo@2"].splitlines()) == 1
    with pytest.raises((EngineError, BundleError), match=why):
        folders.open("echo@2")


def test_a_configured_version_that_is_wrong_ends_the_start(models):
    change_shard(models / "echo@2" / "hub")
    named = BundleFolders([models / "echo@1", models / "echo@2"], None, HubSettings(), open_checked)
    with pytest.raises(BundleError, match="its content is not"):
        named.open_initial(frozenset(), lambda *_: None)


def test_whole_versions_are_all_opened_the_newest_first_and_nothing_is_told(models):
    told: dict[Path, str] = {}
    engines = BundleFolders([], models, HubSettings(), open_checked).open_initial(frozenset(), told.__setitem__)
    assert [engine.card.name for engine in engines] == ["echo@2", "echo@1"]
    assert told == {}
