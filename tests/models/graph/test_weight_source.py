"""Files read past the page cache: bit by bit what lies on the disk, from any place; else as ever."""

import os
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from models.bundle.manifest import BundleError
from models.graph import weight_source
from models.graph.weight_source import BLOCK_BYTES, FileSource, find_cached_blocks, open_direct
from tests import ROOT

SIZE = 3 * BLOCK_BYTES * 256 + 1234  # no whole block at the end


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file on the disk: what other tests write may lie in memory."""
    monkeypatch.setattr(weight_source, "MIN_DIRECT_BYTES", 1)
    monkeypatch.setattr(weight_source, "PIECE_BYTES", 64 * BLOCK_BYTES)
    (ROOT / ".cache").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="test-", dir=ROOT / ".cache") as folder:
        made = Path(folder) / "weights"
        made.write_bytes(np.random.default_rng(2).bytes(SIZE))
        yield made


@pytest.fixture
def handle(path: Path) -> Iterator[int]:
    found = os.open(path, os.O_RDONLY)
    os.fsync(found)
    yield found
    os.close(found)


def forget(handle: int) -> None:
    """Drop the file from the page cache; pages that the system still writes or moves about take another try."""
    for _ in range(100):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        cached = find_cached_blocks(handle, SIZE)
        if cached is None or not cached[:-1].any():
            return
        time.sleep(0.02)


def read(source: FileSource, begin: int, count: int) -> bytes:
    data = bytearray(count)
    source.read_into(begin, memoryview(data))
    return bytes(data)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(("begin", "count"), [(0, SIZE), (8, 999_999), (BLOCK_BYTES + 1, 1), (SIZE - 7, 7), (SIZE, 0)])
def test_a_part_is_the_same_bytes_whether_it_is_cached_or_not(path, handle, cached, begin, count):
    if not cached:
        forget(handle)
    source = FileSource(handle, "w", once=True)
    assert read(source, begin, count) == path.read_bytes()[begin : begin + count]
    source.close()


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="a system without direct reads")
def test_what_is_read_once_stays_out_of_the_page_cache(path, handle):
    forget(handle)
    before = find_cached_blocks(handle, SIZE)
    if before is None or before[:-1].any() or open_direct(handle, SIZE) is None:
        pytest.skip("this file system keeps its files in memory, or reads nothing directly")
    source = FileSource(handle, "w", once=True)
    assert sha256(read(source, 0, SIZE)).digest() == sha256(path.read_bytes()).digest()
    forget(handle)
    read(source, 0, SIZE)
    after = find_cached_blocks(handle, SIZE)
    assert after is not None
    assert not after[:-1].any()  # a block that the file ends in may stay
    source.close()


def test_a_file_that_shrinks_is_refused_by_its_name(path, handle):
    forget(handle)
    source = FileSource(handle, "w", once=True)
    os.truncate(path, SIZE - BLOCK_BYTES)
    with pytest.raises(BundleError, match="weights: w: ends too early"):
        read(source, 0, SIZE)


@pytest.mark.parametrize(("disk", "direct"), [(0.0, True), (1e18, False)], ids=["fast disk", "slow disk"])
def test_a_slow_disk_fills_the_cache_for_the_next_start_and_a_fast_one_does_not(
    path, handle, monkeypatch, disk, direct
):
    monkeypatch.setattr(weight_source, "SLOW_BYTES_PER_S", disk)
    monkeypatch.setattr(weight_source, "_JUDGED_BYTES", SIZE // 2)
    forget(handle)
    source = FileSource(handle, "w", once=True)
    assert read(source, 0, SIZE) == path.read_bytes()
    assert (source._direct is not None) is direct
    source.close()


def test_where_direct_reads_fail_the_file_is_read_as_ever(path, handle, monkeypatch):
    forget(handle)
    source = FileSource(handle, "w", once=True)

    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(weight_source.DirectFile, "read_into", refuse)
    assert read(source, 0, SIZE) == path.read_bytes()


@pytest.mark.parametrize("missing", ["the flag", "the cache's state"])
def test_without_direct_reads_nothing_is_opened_twice(handle, monkeypatch, missing):
    if missing == "the flag":
        monkeypatch.setattr(weight_source, "_DIRECT", 0)
    else:
        monkeypatch.setattr(weight_source, "find_cached_blocks", lambda *_: None)
    assert open_direct(handle, SIZE) is None


def test_no_descriptor_stays_open(handle):
    forget(handle)
    before = len(list(Path("/proc/self/fd").iterdir()))
    source = FileSource(handle, "w", once=True)
    source.close()
    source.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
