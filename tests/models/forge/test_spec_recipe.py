"""Recipe digest of the forge: what changes it, and what does not."""

import shutil
from pathlib import Path

import pytest

import models
from models.forge import spec
from models.forge.spec import recipe_digest, sources_digest


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package's sources, to be changed."""
    return Path(shutil.copytree(models.__path__[0], tmp_path / "models", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.parametrize(
    "name",
    [
        "runtime/feature_codec.py",
        "runtime/codec_ans.py",
        "graph/weights.py",
        "forge/data/packing.py",
        "forge/training/gate.py",
    ],
)
def test_a_changed_module_that_decides_a_bundle_changes_the_digest(copy, name):
    before = sources_digest(copy)
    (copy / name).write_text((copy / name).read_text() + "\n")
    assert sources_digest(copy) != before


@pytest.mark.parametrize(
    "name", ["forge/report/page.py", "forge/report/charts.py", "signing/keyring.py", "zoo/fashion_mnist.py"]
)
def test_a_changed_page_key_command_or_zoo_leaves_it_as_it_was(copy, name):
    before = sources_digest(copy)
    (copy / name).write_text((copy / name).read_text() + "\n")
    assert sources_digest(copy) == before


def test_a_new_module_counts_until_it_is_left_out_by_name(copy):
    before = sources_digest(copy)
    (copy / "new.py").write_text("")
    assert sources_digest(copy) != before


def test_a_renamed_module_changes_it(copy):
    before = sources_digest(copy)
    (copy / "runtime" / "feature_codec.py").rename(copy / "runtime" / "coding.py")
    assert sources_digest(copy) != before


def test_a_name_that_is_left_out_and_not_there_is_an_error(copy):
    shutil.rmtree(copy / "forge" / "report")
    with pytest.raises(FileNotFoundError, match="forge/report"):
        sources_digest(copy)


def test_every_name_is_there_and_a_package_of_another_version_changes_the_whole(monkeypatch):
    before = recipe_digest()
    recipe_digest.cache_clear()
    monkeypatch.setattr(spec, "_version", lambda package: "0" if package == "constriction" else "")
    assert recipe_digest() != before
    recipe_digest.cache_clear()
