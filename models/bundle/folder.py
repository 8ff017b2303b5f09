"""Plain files of a bundle folder: opened without following links, read and hashed within limits.

Rule: anything but a plain file directly in the folder is a `BundleError` of one line.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from models.bundle.manifest import BundleError

MAX_STREAMED_BYTES = 1 << 40  # of one file that is hashed in a stream
CHUNK_BYTES = 1 << 22
ByteCallback = Callable[[int], None]


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Open the folder as a descriptor; every BundleError raised inside gets the path in front."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BundleError(f"{path}: no bundle can be read there ({error.strerror})") from None
    try:
        yield folder
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from None
    finally:
        os.close(folder)


def read_plain_file(folder: int, name: str, max_bytes: int) -> bytes:
    """Return the whole content of a plain file directly in the folder, without following links or opening devices."""
    handle = open_plain_file(folder, name)
    try:
        return _read_limited(handle, name, max_bytes)
    except OSError as error:
        raise BundleError(f"{name}: {error.strerror}") from None
    finally:
        os.close(handle)


def open_plain_file(folder: int, name: str) -> int:
    """Return a descriptor of a file directly in the folder. BundleError if it is a link or cannot be opened."""
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        # O_NOFOLLOW reports a link as ELOOP (EMLINK on some BSDs)
        linked = error.errno in (errno.ELOOP, errno.EMLINK)
        raise BundleError(f"{name}: {'is a link, not a file' if linked else error.strerror}") from None


def _read_limited(handle: int, name: str, max_bytes: int) -> bytes:
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        raise BundleError(f"{name}: is not a plain file")
    if facts.st_size <= max_bytes:
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)  # one more than allowed: the file may grow while it is read
        if len(data) <= max_bytes:
            return data
    raise BundleError(f"{name}: bigger than the {max_bytes} bytes allowed")


def measure_open_file(handle: int, name: str) -> int:
    """Return the bytes of an open file. BundleError unless it is a plain file of at most `MAX_STREAMED_BYTES`."""
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_STREAMED_BYTES:
        raise BundleError(f"{name}: is not a plain file of at most {MAX_STREAMED_BYTES} bytes")
    return facts.st_size


def hash_open_file(handle: int, name: str, tick: ByteCallback | None = None) -> str:
    """Return the SHA-256 (hex) of an open file, read once in chunks; `tick` is told of each how many bytes it had.

    BundleError if it is no plain file, or cannot be read.
    """
    measure_open_file(handle, name)
    digest, at = sha256(), 0
    try:
        while piece := os.pread(handle, CHUNK_BYTES, at):
            digest.update(piece)
            at += len(piece)
            if tick:
                tick(len(piece))
    except OSError as error:
        raise BundleError(f"{name}: {error.strerror}") from None
    return digest.hexdigest()


def write_plain_file(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on disk. OSError if it is there already or the disk refuses."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
