"""Resumable download on disk: the bytes so far, and the server's ETag of the file they belong to.

Rule: it is named by the digest it shall have, and becomes a file of ours only after it was hashed, synced and renamed.
It knows nothing of TUF, so that the running agent can inspect its disk without that library.
"""

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from wire.process.files import sync_folder

MAX_TAG_CHARS = 256


class PartialDownload:
    """Partial download: use as a context.

    Bytes already there are kept: they begin the same file, or its hash will fail.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tag_path = path.with_name(path.name + ".tag")
        self.resumed = False  # its beginning came over another connection than its end

    def __enter__(self) -> Self:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.file: BinaryIO = os.fdopen(fd, "r+b")
        self.size = self.file.seek(0, os.SEEK_END)
        self._tag = _read_tag(self._tag_path) if self.size else ""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):  # what a full disk could not take was reported by the write itself
            self.file.close()

    @property
    def tag(self) -> str:
        """The ETag under which the bytes came; "" if there was none."""
        return self._tag

    @tag.setter
    def tag(self, value: str) -> None:
        """ETag under which the bytes came; "" if there was none."""
        value = value if len(value) <= MAX_TAG_CHARS and value.isprintable() else ""
        if value != self._tag:
            self._tag = value
            self._tag_path.write_text(value, encoding="utf-8")

    def append(self, data: bytes) -> None:
        """Append bytes that arrived."""
        self.file.write(data)
        self.size += len(data)

    def flush(self) -> None:
        """Flush buffered bytes to the operating system."""
        self.file.flush()

    def restart(self) -> None:
        """Discard the bytes so far and begin anew."""
        self.file.seek(0)
        self.file.truncate()
        self.size = 0
        self.resumed = False

    def discard(self) -> None:
        """Remove the file and its tag."""
        for path in (self.path, self._tag_path):
            path.unlink(missing_ok=True)

    def move_to(self, final: Path) -> None:
        """Move the file to its final path, durably. The caller has verified the bytes."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.path.replace(final)
        self._tag_path.unlink(missing_ok=True)
        sync_folder(final.parent)


def _read_tag(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:MAX_TAG_CHARS]
    except (OSError, UnicodeDecodeError):
        return ""
