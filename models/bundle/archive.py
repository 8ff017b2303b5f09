"""Packed bundles (`.skb`): an uncompressed tar archive of a bundle folder in one canonical form.

Rule: the same bundle gives the same bytes, and `unpack_bundle` accepts nothing but those bytes. Every header is rebuilt
from its name and size and must be equal, so links, devices, owners, paths, long-name and sparse extensions have no way
in.

Format: POSIX ustar (IEEE Std 1003.1) with mode 0644, zero times and owners, members in order of name, and two zero
blocks of 512 bytes at the end.
"""

import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from models.bundle.bundle import MAX_BUNDLE_BYTES, MAX_FILE_BYTES, Bundle
from models.bundle.manifest import FILE_NAME, MANIFEST_FILE, BundleError, encode_manifest

BLOCK_BYTES = 512
CHUNK_BYTES = 1 << 20
MAX_FILES = 64
END_BLOCKS = bytes(2 * BLOCK_BYTES)
_NAME_BYTES = 100
StepCallback = Callable[[str], None]


def pack_bundle(bundle: Bundle) -> bytes:
    """Pack a bundle as the bytes of its `.skb` file: the manifest and the files it names, in order of name.

    What lies beside them (`forge.json`) stays out. The whole archive is built in memory: at most `MAX_BUNDLE_BYTES`.
    BundleError if the manifest on disk is not the canonical encoding, since its digest would then be lost.
    """
    manifest = encode_manifest(bundle.manifest)
    if sha256(manifest).hexdigest() != bundle.digest:
        raise BundleError(f"{bundle.path}: {MANIFEST_FILE} was written by hand; write the bundle with `write_version`")
    contents = {MANIFEST_FILE: manifest, **{name: bundle.read_file(name) for name in bundle.manifest.files}}
    members = (
        _build_header(name, len(data)) + data + _zero_padding(len(data)) for name, data in sorted(contents.items())
    )
    return b"".join(members) + END_BLOCKS


def unpack_bundle(source: BinaryIO, folder: Path, step: StepCallback | None = None) -> str:
    """Unpack a bundle from a stream into the new, empty `folder`; return the SHA-256 (hex) of all bytes read.

    The digest is of the very bytes that were written out: compare it before the folder is used. Every file is synced to
    disk. `step` is called before each file with its name, for progress or cancellation. BundleError for any byte that
    `pack_bundle` would not have written; OSError if the disk refuses. On an error the files written so far stay in
    `folder`: the caller removes it.
    """
    reader = _BoundedReader(source)
    earlier = ""
    for _ in range(MAX_FILES):
        header = reader.read_exactly(BLOCK_BYTES)
        if header == bytes(BLOCK_BYTES):
            _check_end(reader)
            return reader.digest.hexdigest()
        name, size = _parse_header(header)
        if name <= earlier:
            raise BundleError(f"packed bundle: {name} is out of order")
        if step:
            step(name)
        _write_member(folder / name, reader.read_chunks(size))
        earlier = name
    raise BundleError(f"packed bundle: more than {MAX_FILES} files")


class _BoundedReader:
    """Reader of the archive that counts and hashes every byte and refuses to exceed `MAX_BUNDLE_BYTES`."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._left = MAX_BUNDLE_BYTES
        self.digest = sha256()

    def read_exactly(self, size: int) -> bytes:
        """Read exactly `size` bytes. BundleError if the stream ends before, or the archive is too big."""
        self._left -= size
        data = self._source.read(size) if self._left >= 0 else b""
        if len(data) != size:
            raise BundleError("packed bundle: it ends too early, or is too big")
        self.digest.update(data)
        return data

    def read_chunks(self, size: int) -> Iterator[bytes]:
        """Read the `size` bytes of a member in chunks, then its zero padding.

        BundleError if the padding is not zero.
        """
        for at in range(0, size, CHUNK_BYTES):
            yield self.read_exactly(min(CHUNK_BYTES, size - at))
        if any(self.read_exactly(-size % BLOCK_BYTES)):
            raise BundleError("packed bundle: padding is not empty")

    def at_end(self) -> bool:
        """Tell whether the stream has no further byte."""
        return not self._source.read(1)


def _check_end(reader: _BoundedReader) -> None:
    """Check the end of the archive: the second zero block, and no byte behind it."""
    if any(reader.read_exactly(BLOCK_BYTES)) or not reader.at_end():
        raise BundleError("packed bundle: something follows its end")


def _parse_header(header: bytes) -> tuple[str, int]:
    """Parse a tar header into (name, size in bytes), if it is exactly the header that `pack_bundle` writes for them."""
    try:
        name = header[:100].rstrip(b"\0").decode("ascii")
        size = int(header[124:135], 8)
    except ValueError:
        raise BundleError("packed bundle: a header is damaged") from None
    if not FILE_NAME.fullmatch(name) or not 0 <= size <= MAX_FILE_BYTES or _build_header(name, size) != header:
        raise BundleError("packed bundle: a member is not a plain file with a plain name")
    return name, size


def _build_header(name: str, size: int) -> bytes:
    """Header of a plain file, byte for byte: the `tarfile` of a Python decides about some of these bytes by itself."""
    numbers = b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size + b"0" * 11 + b"\0"
    start, end = name.encode("ascii").ljust(_NAME_BYTES, b"\0") + numbers, b"0".ljust(101, b"\0") + b"ustar\x0000"
    checksum = sum(start + b" " * 8 + end)
    return (start + b"%06o\0 " % checksum + end).ljust(BLOCK_BYTES, b"\0")


def _zero_padding(size: int) -> bytes:
    return bytes(-size % BLOCK_BYTES)


def _write_member(path: Path, pieces: Iterator[bytes]) -> None:
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
