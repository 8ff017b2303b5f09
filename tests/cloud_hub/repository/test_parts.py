"""The store of hub parts: hashed in a stream, linked where it can be, and nothing half under a name."""

import errno
import os
import resource
import time
import tracemalloc
from hashlib import sha256

import pytest

from cloud_hub.repository import parts
from cloud_hub.repository.parts import PartMismatchError, PartStore, hash_file
from wire.process.exit_codes import ExitCode, ExitError

DATA = os.urandom(3000)
DIGEST = sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path):
    return PartStore(tmp_path / "repository" / "parts")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "hub-00001.safetensors"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def apart(monkeypatch):
    """The source lies on another disk."""

    def refuse(*_, **__):
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", refuse)


def names(store):
    return sorted(path.name for path in store.folder.iterdir())


def test_a_file_of_the_same_disk_takes_no_room_twice(store, source):
    assert store.place_file(source, DIGEST, len(DATA))
    assert store.locate(DIGEST).stat().st_ino == source.stat().st_ino
    assert store.has_part(DIGEST, len(DATA))
    assert names(store) == [DIGEST]


def test_a_file_of_another_disk_is_copied_in_a_stream(store, source, apart):
    hashed: list[int] = []
    assert store.place_file(source, DIGEST, len(DATA), hashed.append)
    assert store.locate(DIGEST).stat().st_ino != source.stat().st_ino
    assert store.locate(DIGEST).stat().st_mode & 0o777 == 0o600
    assert hash_file(store.locate(DIGEST)) == DIGEST
    assert sum(hashed) == len(DATA)


def test_a_file_that_is_there_is_taken_once_and_a_damaged_one_is_replaced(store, source):
    store.place_file(source, DIGEST, len(DATA))
    assert not store.place_file(source, DIGEST, len(DATA))
    store.locate(DIGEST).unlink()
    store.locate(DIGEST).write_bytes(bytes(len(DATA)))
    assert store.place_file(source, DIGEST, len(DATA))
    assert hash_file(store.locate(DIGEST)) == DIGEST


@pytest.mark.parametrize("changed", [bytes(len(DATA)), DATA + b"!", DATA[:-1]])
@pytest.mark.parametrize("how", ["linked", "copied"])
def test_a_file_with_other_bytes_does_not_come_in(store, source, changed, how, request):
    if how == "copied":
        request.getfixturevalue("apart")
    source.write_bytes(changed)
    with pytest.raises(PartMismatchError, match="SHA-256 differs"):
        store.place_file(source, DIGEST, len(DATA))
    assert names(store) == []
    assert source.read_bytes() == changed


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "nothing"])
def test_anything_but_a_plain_file_is_refused(store, source, kind):
    other = source.with_name("other")
    {
        "link": lambda: other.symlink_to(source),
        "pipe": lambda: os.mkfifo(other),
        "folder": other.mkdir,
        "nothing": lambda: None,
    }[kind]()
    with pytest.raises((ExitError, PartMismatchError)):
        store.place_file(other, DIGEST, len(DATA))
    assert names(store) == []


def test_a_disk_that_fills_while_a_file_is_copied_leaves_nothing(store, source, apart):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ExitError) as stop:
            store.place_file(source, DIGEST, len(DATA))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stop.value.code is ExitCode.DISK
    assert len(str(stop.value).splitlines()) == 1
    assert names(store) == []


def test_pruning_goes_by_when_a_file_came_and_not_by_its_own_age(store, source):
    """A hard link has the mtime of its source, which may be years old."""
    os.utime(source, (0, 0))
    store.place_file(source, DIGEST, len(DATA))
    store.prune_parts((), 3600.0)
    assert names(store) == [DIGEST]
    time.sleep(0.01)
    store.prune_parts({DIGEST}, 0.0)
    assert names(store) == [DIGEST]
    store.prune_parts((), 0.0)
    assert names(store) == []


def test_pruning_leaves_what_is_still_coming_in_and_takes_what_a_crash_cut(store, source, monkeypatch):
    store.place_file(source, DIGEST, len(DATA))
    begun = store.folder / f".{'0' * 64}.dead"
    begun.write_bytes(b"half")
    store.prune_parts({DIGEST}, 0.0)
    assert begun.exists()
    monkeypatch.setattr(parts, "UNFINISHED_LIFE_S", -1.0)
    store.prune_parts({DIGEST}, 0.0)
    assert names(store) == [DIGEST]


def test_a_large_file_is_never_held_in_memory(store, tmp_path):
    """64 MiB of holes: what is held at the peak is counted in chunks, not in files."""
    big = tmp_path / "big.safetensors"
    with big.open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        store.place_file(big, hash_file(big), 64 << 20)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * parts.CHUNK_BYTES
