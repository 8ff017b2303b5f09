"""A folder with very many files of one name costs a few looks a file, and keeps no more files than it may."""

import os
from pathlib import Path

import pytest

from edge_agent.sources.files import folder
from edge_agent.sources.files.folder import FreeNames, prune_folder


class CountedPath(type(Path())):  # type: ignore[misc]
    """A path that counts how often anybody looked whether it exists, among so many numbers that are taken."""

    looks = 0
    taken = 0

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        type(self).looks += 1
        number = self.stem.rpartition(".")[2]
        return self.stem == "snapshot" or int(number) <= type(self).taken


@pytest.mark.parametrize("taken", [1_000, 4_000, 16_000, 1_000_000])
def test_the_looks_for_a_free_name_do_not_grow_with_the_files_of_that_name(taken: int):
    CountedPath.looks, CountedPath.taken = 0, taken
    names = FreeNames()
    assert names.find_free(CountedPath("done/snapshot.jpg")).name == f"snapshot.{taken + 1}.jpg"
    assert CountedPath.looks <= 50
    CountedPath.looks, CountedPath.taken = 0, taken + 1
    assert names.find_free(CountedPath("done/snapshot.jpg")).name == f"snapshot.{taken + 2}.jpg"
    assert CountedPath.looks <= 4


def test_every_name_is_free_and_none_is_given_twice(tmp_path: Path):
    given = set()
    for turn in range(3):
        names = FreeNames()  # as after a start
        for _ in range(20):
            path = names.find_free(tmp_path / "snapshot.jpg")
            assert not path.exists()
            path.touch()
            given.add(path.name)
        (tmp_path / f"snapshot.{turn + 3}.jpg").unlink()
    assert len(given) >= 60 - 3


def test_names_that_are_remembered_are_bounded(tmp_path: Path):
    names = FreeNames()
    for number in range(folder.MAX_NAMES + 10):
        names.find_free(tmp_path / f"{number}.jpg")
    assert len(names._last) == folder.MAX_NAMES


def test_the_oldest_files_of_done_are_deleted_beyond_the_number_that_it_keeps(tmp_path: Path):
    for number in range(10):
        (tmp_path / f"{number}.jpg").touch()
        os.utime(tmp_path / f"{number}.jpg", (number, number))
    assert prune_folder(tmp_path, 4) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["6.jpg", "7.jpg", "8.jpg", "9.jpg"]
    assert prune_folder(tmp_path, 4) == 0
