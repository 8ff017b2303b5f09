"""Places of bundle folders: only an older bundle of the same model is replaced, and only its own files go."""

from pathlib import Path

import pytest

from models.bundle.bundle import open_bundle
from models.bundle.replacement import PlaceError, check_place, replace_bundle
from tests.cloud_hub.doubles.versions import make_version
from tests.models.conftest import make


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_older_version_of_two_parts_is_replaced_and_nothing_of_it_stays(tmp_path):
    make_version(tmp_path / "digits")
    fresh = make_version(tmp_path / "fresh").path
    before = names(fresh), names(fresh / "hub")
    replace_bundle(fresh, tmp_path / "digits", "echo")
    assert (names(tmp_path / "digits"), names(tmp_path / "digits" / "hub")) == before
    assert names(tmp_path) == ["digits"]


@pytest.mark.parametrize("name", ["notes.txt", "hub/notes.txt", "hub2", ".git"])
def test_one_strange_file_beside_the_bundles_own_keeps_the_folder(tmp_path, name):
    made = make_version(tmp_path / "digits").path
    (made / name).write_text("mine")
    with pytest.raises(PlaceError, match=f"'{name}', which is no part of its bundle echo@"):
        make_version(made)
    assert (made / name).read_text() == "mine"
    assert names(tmp_path) == ["digits"]


def test_a_bundle_of_another_model_is_not_replaced(tmp_path):
    make(tmp_path / "p")
    with pytest.raises(PlaceError, match="holds the bundle echo@1, of another model than digits"):
        check_place(tmp_path / "p", "digits")
    assert open_bundle(tmp_path / "p").manifest.name == "echo"


def test_an_empty_folder_and_a_missing_parent_are_free(tmp_path):
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty")
    make(tmp_path / "a" / "b" / "c")
    assert open_bundle(tmp_path / "empty").digest == open_bundle(tmp_path / "a" / "b" / "c").digest


def test_a_damaged_bundle_is_replaced_whatever_is_missing_of_it(tmp_path):
    made = make_version(tmp_path / "digits").path
    (made / "hub" / "part.json").write_text("{}")
    for file in (made / "hub").iterdir():
        if file.name != "part.json":
            file.unlink()
    make_version(made)
    assert open_bundle(made).manifest.name == "echo"
