"""Files of hub parts in the update repository: weights of any size, stored under their SHA-256 and nothing else.

Rule: no file is ever held in memory, and none has its name here before every byte of it was hashed. A file that comes
from the same disk is hard-linked and takes no room; from elsewhere it is copied in one stream. Two may write at once.
"""

import errno
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import sync_folder, write_private_file

CHUNK_BYTES = 1 << 22
UNLINKABLE = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS})
UNFINISHED_LIFE_S = 86_400.0  # of a file that was begun: a crash left it
_SCRATCH = "."  # begins the name of a file that is not whole yet

ByteTick = Callable[[int], None]
"""Called with the number of bytes just hashed, for progress."""

ByteProgress = Callable[[int, int], None]
"""Called with the bytes done so far and the bytes in all, for progress."""


def ignore_tick(size_bytes: int) -> None:
    """Count no bytes."""
    del size_bytes


def ignore_progress(done_bytes: int, total_bytes: int) -> None:
    """Show no progress."""
    del done_bytes, total_bytes


class PartMismatchError(Exception):
    """A file is not what its hub part says it is: one line."""


class PartStore:
    """Content-addressed files of hub parts in one folder, which is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def locate(self, digest: str) -> Path:
        """Return the path of the file with this SHA-256 (hex), there or not."""
        return self.folder / digest

    def has_part(self, digest: str, size_bytes: int) -> bool:
        """Tell whether a plain file of this name and size is there. It was hashed when it got the name."""
        try:
            facts = self.locate(digest).lstat()
        except OSError:
            return False
        return stat.S_ISREG(facts.st_mode) and facts.st_size == size_bytes

    def place_bytes(self, data: bytes) -> Path:
        """Write a small file under its SHA-256. ExitError(DISK) if it cannot be written."""
        place = self.locate(sha256(data).hexdigest())
        self._make_folder()
        write_private_file(place, data)
        return place

    def place_file(self, source: Path, digest: str, size_bytes: int, tick: ByteTick = ignore_tick) -> bool:
        """Take a file in under its SHA-256, by a hard link or a copy; false if the same bytes are there already.

        Either way every byte that bears the name was hashed here: a damaged file of that name is replaced.
        PartMismatchError if the source's bytes are others; ExitError(DISK) if it cannot be read or written. Then
        nothing has come in.
        """
        if self.has_part(digest, size_bytes) and hash_file(self.locate(digest), tick) == digest:
            return False
        self._make_folder()
        fresh = self.folder / f"{_SCRATCH}{digest}.{secrets.token_hex(4)}"
        try:
            if _copy_or_link(source, fresh, size_bytes, tick) != digest:
                raise PartMismatchError(f"{source}: its content is not what the hub part promises (SHA-256 differs)")
            fresh.replace(self.locate(digest))
            sync_folder(self.folder)
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{source} into {self.folder}: {error.strerror}") from None
        finally:
            fresh.unlink(missing_ok=True)
        return True

    def drop_parts(self, digests: Collection[str]) -> None:
        """Delete files; what is not there, or cannot be deleted, does no harm."""
        for digest in digests:
            with suppress(OSError):
                self.locate(digest).unlink(missing_ok=True)

    def prune_parts(self, kept: Collection[str], life_s: float) -> None:
        """Delete what came in more than `life_s` seconds ago and is not in `kept`, and what was begun a day ago.

        OSError if the folder cannot be read.
        """
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            # a hard link keeps the source's mtime: ctime says when it came here
            age_s = time.time() - path.lstat().st_ctime
            begun = path.name.startswith(_SCRATCH)
            if age_s > (UNFINISHED_LIFE_S if begun else life_s) and path.name not in kept:
                path.unlink()

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{self.folder}: {error.strerror}") from None


def list_part_files(description: bytes) -> dict[str, int]:
    """Return the SHA-256 (hex) and size in bytes of each file that a hub part's description names.

    ValueError if it is damaged.
    """
    try:
        files = json.loads(description)["files"]
        return {str(file["sha256"]): int(file["size_bytes"]) for file in files.values()}
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("not the description of a hub part") from None


def hash_file(path: Path, tick: ByteTick = ignore_tick) -> str:
    """Return the SHA-256 (hex) of a plain file, read in one stream. OSError if it is none, or cannot be read."""
    with _open_plain(path) as file:
        digest = sha256()
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
            tick(len(piece))
    return digest.hexdigest()


def _copy_or_link(source: Path, fresh: Path, size_bytes: int, tick: ByteTick) -> str:
    """Link or copy `source` to `fresh`; return the SHA-256 of what lies there now."""
    try:
        os.link(source, fresh, follow_symlinks=False)
    except OSError as error:
        if error.errno not in UNLINKABLE:
            raise
        return _copy_hashed(source, fresh, size_bytes, tick)
    if fresh.lstat().st_size != size_bytes:
        return ""
    with _open_plain(fresh) as file:
        os.fsync(file.fileno())  # whoever wrote the source may not have
    return hash_file(fresh, tick)


def _copy_hashed(source: Path, fresh: Path, size_bytes: int, tick: ByteTick) -> str:
    """Copy a file durably in one stream, at most one byte more than it should have; return the SHA-256 of the copy."""
    digest, left = sha256(), size_bytes + 1
    with _open_plain(source) as file, fresh.open("xb") as copy:
        fresh.chmod(0o600)
        while piece := file.read(min(CHUNK_BYTES, left)):
            copy.write(piece)
            digest.update(piece)
            tick(len(piece))
            left -= len(piece)
        copy.flush()
        os.fsync(copy.fileno())
    return digest.hexdigest()


def _open_plain(path: Path) -> BinaryIO:
    """Open a plain file for reading. OSError for anything else: a link, a device, a pipe."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a plain file")
    return os.fdopen(handle, "rb", buffering=0)
