"""Sources of weights: bytes of one safetensors file, by their place in it, from the disk or from memory.

A large file on a fast disk is read past the page cache (`O_DIRECT`) where it does not lie in it: filling the cache
costs a processor five times as much as reading. What is in the cache, as after a publication, is taken from there. A
slow disk is the limit itself, and a filled cache spares the next start its reading: there, and on systems and file
systems without direct reads, a file is read as ever.
"""

import ctypes
import mmap
import os
import sys
import time
from contextlib import suppress
from typing import Protocol

import numpy as np

from models.bundle.manifest import BundleError

BLOCK_BYTES = 4096  # of a direct read: its place in the file and in memory
PIECE_BYTES = 1 << 22  # of one direct read
MIN_DIRECT_BYTES = 1 << 26  # of a file: below it there is nothing to gain
SLOW_BYTES_PER_S = 100e6  # of a file, of which up to four are read at once
_JUDGED_BYTES = 1 << 26
_DIRECT = getattr(os, "O_DIRECT", 0)


class WeightSource(Protocol):
    """Bytes of one safetensors file. `name` is shown in messages, "" = none."""

    name: str
    size: int

    def read_into(self, begin: int, view: memoryview) -> None:
        """Fill `view` with the bytes from `begin` on. BundleError if they end before."""
        ...

    def close(self) -> None:
        """Let go of what reading took; the source is unusable afterwards."""
        ...


class FileSource:
    """Source on an open file; the descriptor stays the caller's. `once`: every byte is wanted, and only once."""

    def __init__(self, descriptor: int, name: str = "", *, once: bool = False) -> None:
        self.name = name
        self._descriptor = descriptor
        try:
            self.size = os.fstat(descriptor).st_size
        except OSError as error:
            raise make_source_error(self, f"cannot be read ({error.strerror})") from None
        self._direct = open_direct(descriptor, self.size) if once else None
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read_into(self, begin: int, view: memoryview) -> None:
        while view:
            try:
                count = self._read(begin, view)
            except OSError as error:
                raise make_source_error(self, f"cannot be read ({error.strerror})") from None
            if not count:
                raise make_source_error(self, "ends too early")
            view, begin = view[count:], begin + count

    def close(self) -> None:
        if self._direct is not None:
            self._direct.close()
        self._direct = None

    def _read(self, begin: int, view: memoryview) -> int:
        """Read some bytes; returns how many."""
        if self._direct is not None and self._direct.wants(begin, len(view)):
            try:
                count = self._direct.read_into(begin, view)
            except OSError:  # a file system that takes the flag and not the read
                self.close()
            else:
                if self._direct.is_slow:
                    self.close()
                return count
        return os.preadv(self._descriptor, [view], begin)


class DirectFile:
    """File opened for direct reads, by a buffer of its own. `cached`: whether each block is in the page cache."""

    def __init__(self, descriptor: int, cached: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> None:
        self._descriptor = descriptor
        self._cached = cached
        self._buffer = mmap.mmap(-1, PIECE_BYTES + 2 * BLOCK_BYTES)  # begins at a page
        self._bytes = np.frombuffer(self._buffer, np.uint8)
        self._read_bytes, self._waited_s = 0, 0.0

    @property
    def is_slow(self) -> bool:
        """Whether the disk is known to be slower than `SLOW_BYTES_PER_S`."""
        return self._read_bytes >= _JUDGED_BYTES and self._read_bytes < SLOW_BYTES_PER_S * self._waited_s

    def wants(self, begin: int, count: int) -> bool:
        """Whether any of these bytes are not in the page cache."""
        first, last = begin // BLOCK_BYTES, (begin + min(count, PIECE_BYTES) - 1) // BLOCK_BYTES
        return not self._cached[first : last + 1].all()

    def read_into(self, begin: int, view: memoryview) -> int:
        """Fill the beginning of `view`; returns how many bytes, 0 at the end of the file. OSError."""
        skip = begin % BLOCK_BYTES
        wanted = min(len(view), PIECE_BYTES)
        blocks = -(-(skip + wanted) // BLOCK_BYTES) * BLOCK_BYTES
        began = time.monotonic()
        count = os.preadv(self._descriptor, [memoryview(self._buffer)[:blocks]], begin - skip) - skip
        self._waited_s += time.monotonic() - began
        self._read_bytes += count
        count = max(0, min(count, wanted))
        np.copyto(np.frombuffer(view, np.uint8)[:count], self._bytes[skip : skip + count])  # without Python's lock
        return count

    def close(self) -> None:
        """Close the file; the descriptor that it was made of stays open."""
        os.close(self._descriptor)


def open_direct(descriptor: int, size: int) -> DirectFile | None:
    """Open the very file of a descriptor for direct reads; None if it is small, cached or cannot be read so."""
    if not _DIRECT or sys.platform != "linux" or size < MIN_DIRECT_BYTES:
        return None
    cached = find_cached_blocks(descriptor, size)
    if cached is None or cached.all():
        return None
    with suppress(OSError):
        return DirectFile(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC | _DIRECT), cached)
    return None


def find_cached_blocks(descriptor: int, size: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]] | None":
    """Whether each block of a file is in the page cache (mincore); None where the system does not say."""
    if mmap.PAGESIZE != BLOCK_BYTES:
        return None
    try:
        with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped:
            content = np.frombuffer(mapped, np.uint8)
            found = np.zeros(-(-size // BLOCK_BYTES), np.uint8)
            place, states = ctypes.c_void_p(content.ctypes.data), ctypes.c_void_p(found.ctypes.data)
            refused = ctypes.CDLL(None).mincore(place, ctypes.c_size_t(size), states)
            del content
    except (OSError, ValueError, AttributeError):
        return None
    return None if refused else (found & 1).astype(np.bool_)


class BytesSource:
    """Source on bytes in memory."""

    name = ""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = memoryview(data)

    def read_into(self, begin: int, view: memoryview) -> None:
        view[:] = self._data[begin : begin + len(view)]

    def close(self) -> None:
        """Nothing to let go of."""


def make_source_error(source: WeightSource, why: str) -> BundleError:
    """The error for a file that cannot be used, with its name if it has one."""
    return BundleError(f"weights: {source.name}: {why}" if source.name else f"weights: {why}")
