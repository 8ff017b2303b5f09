"""A folder with very many files of one name costs a few looks a file, and keeps no more files than it may."""

import os
from pathlib import Path

import pytest

from edge_agent.sources.files import folder
from edge_agent.sources.files.folder import KEEP_ALL, FreeNames, KeptFiles, prune_folder


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


def write_dated(folder: Path, count: int, size_bytes: int) -> None:
    """Files 0.jpg (the oldest) to N.jpg."""
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(bytes(size_bytes))
        os.utime(folder / f"{number}.jpg", (number, number))


LIMITS = {
    "a number": (KeptFiles(max_files=4), 4),
    "a size": (KeptFiles(max_bytes=450), 4),
    "a size to the byte": (KeptFiles(max_bytes=400), 4),
    "both, the number is less": (KeptFiles(max_files=3, max_bytes=450), 3),
    "both, the size is less": (KeptFiles(max_files=6, max_bytes=299), 2),
    "a size that no file has": (KeptFiles(max_bytes=99), 0),
    "all": (KEEP_ALL, 10),
}


@pytest.mark.parametrize(("kept", "left"), LIMITS.values(), ids=LIMITS)
def test_the_oldest_files_of_done_are_deleted_beyond_the_number_and_the_size_that_it_keeps(
    tmp_path: Path, kept: KeptFiles, left: int
):
    write_dated(tmp_path, 10, 100)
    assert prune_folder(tmp_path, kept) == 10 - left
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{number}.jpg" for number in range(10 - left, 10)]
    assert prune_folder(tmp_path, kept) == 0


def test_what_cannot_be_deleted_does_not_count_as_deleted(tmp_path: Path):
    write_dated(tmp_path, 4, 100)
    (tmp_path / "folder").mkdir()  # unlink refuses it
    os.utime(tmp_path / "folder", (-1, -1))
    prune_folder(tmp_path, KeptFiles(max_files=3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.jpg", "3.jpg", "folder"]
