"""Bundle folders on disk: reading, verifying and writing a manifest and the files that it names by SHA-256.

Rule: every file is read once and hashed, and the bytes handed out are the bytes that were hashed (nothing is reopened
by name, so a swap after the check changes nothing). Anything but plain, expected files is a `BundleError` of one line.
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec

from models.bundle.manifest import (
    MANIFEST_FILE,
    BundleError,
    Manifest,
    check_manifest,
    decode_manifest,
    encode_manifest,
)

REPORT_FILE = "forge.json"  # timings of the machine that made it: beside the content, not part of it
MAX_MANIFEST_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 30
MAX_BUNDLE_BYTES = 1 << 31
MAX_STREAMED_BYTES = 1 << 40  # of one file of weights that is hashed, and left where it is
_HASH_CHUNK_BYTES = 1 << 22


class Bundle:
    """A verified bundle: its manifest and the contents of its files.

    `digest` (SHA-256 of the manifest, hex) names its exact content. `report` is the JSON of the forge, unverified, b""
    if there is none. `files` maps weights that were left on disk (see `open_bundle_streamed`) to open file descriptors;
    `close` them.
    """

    def __init__(
        self, path: Path, manifest: Manifest, digest: str, contents: Mapping[str, bytes], report: bytes
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.digest = digest
        self.report = report  # JSON of the forge, unverified; b"" if there is none
        self._contents = contents
        self.files: dict[str, int] = {}  # weights left on disk (`open_bundle_streamed`): by name, open for reading

    def read_file(self, name: str) -> bytes:
        """Return the verified bytes of one file that the manifest names. BundleError if it names none such."""
        try:
            return self._contents[name]
        except KeyError:
            raise BundleError(f"{self.manifest.model} has no file {name!r}") from None

    def close(self) -> None:
        """Close the descriptors in `files`; a bundle that was read as a whole has none."""
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files = {}


def open_bundle(path: Path | str) -> Bundle:
    """Read and verify a whole bundle folder into memory.

    At most `MAX_FILE_BYTES` per file and `MAX_BUNDLE_BYTES` together. BundleError, with the path in front, if a file is
    missing, extra, too big, a link or a device, or if its SHA-256 is not the manifest's.
    """
    with _open_folder(Path(path)) as folder:
        return _read_folder(Path(path), folder, apart=False)


def open_bundle_streamed(path: Path | str) -> Bundle:
    """Verify a bundle folder but leave the hub's weights on disk, as open descriptors in `Bundle.files`.

    For weights bigger than memory: they are hashed as they stream by, up to `MAX_STREAMED_BYTES` per file. Whoever
    holds a descriptor reads the file that was hashed, whatever its name points to by then. BundleError as
    `open_bundle`.
    """
    with _open_folder(Path(path)) as folder:
        return _read_folder(Path(path), folder, apart=True)


def read_manifest(path: Path | str) -> Manifest:
    """Read the manifest of a bundle folder alone, checked, before anything it names is read.

    BundleError if unusable.
    """
    with _open_folder(Path(path)) as folder:
        return decode_manifest(_read_file(folder, MANIFEST_FILE, MAX_MANIFEST_BYTES))


@contextmanager
def _open_folder(path: Path) -> Iterator[int]:
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


def write_bundle(path: Path | str, manifest: Manifest, contents: Mapping[str, bytes], report: bytes = b"") -> Bundle:
    """Write a bundle folder in one step (a temporary folder, then a rename), replacing an older one at `path`.

    `contents`: file name to bytes; `manifest.files` is filled in here with their digests. `report`: JSON beside the
    content, not covered by the digest. The same manifest and contents give the same bytes. Returns the opened bundle.
    BundleError for an impossible manifest; OSError if the disk refuses, and then the older bundle is still there.
    """
    path = Path(path)
    files = {name: sha256(contents[name]).hexdigest() for name in sorted(contents)}
    manifest = msgspec.structs.replace(manifest, files=files)
    check_manifest(manifest)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        for name, data in contents.items():
            _write_file(scratch / name, data)
        if report:
            _write_file(scratch / REPORT_FILE, report)
        _write_file(scratch / MANIFEST_FILE, encode_manifest(manifest))
        scratch.chmod(0o755)
        _replace_folder(scratch, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return open_bundle(path)


def _replace_folder(scratch: Path, path: Path) -> None:
    """Move `scratch` to `path`.

    A folder cannot be renamed onto a filled one: the old one steps aside first, removed after.
    """
    if path.is_dir() and not path.is_symlink():
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
        path.rename(aside / "bundle")
        scratch.rename(path)
        shutil.rmtree(aside)
    else:
        path.unlink(missing_ok=True)
        scratch.rename(path)


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read_folder(path: Path, folder: int, *, apart: bool) -> Bundle:
    if MANIFEST_FILE not in os.listdir(folder):
        raise BundleError(f"no {MANIFEST_FILE} in it, so it is not a bundle")
    raw = _read_file(folder, MANIFEST_FILE, MAX_MANIFEST_BYTES)
    manifest = decode_manifest(raw)
    _check_names(set(os.listdir(folder)), manifest)
    contents: dict[str, bytes] = {}
    left = MAX_BUNDLE_BYTES
    left_there = set(manifest.hub.weights) if apart else set()
    for name in sorted(manifest.files.keys() - left_there):
        data = _read_file(folder, name, min(MAX_FILE_BYTES, left))
        _check_digest(name, sha256(data).hexdigest(), manifest)
        contents[name] = data
        left -= len(data)
    report = _read_file(folder, REPORT_FILE, MAX_MANIFEST_BYTES) if REPORT_FILE in os.listdir(folder) else b""
    bundle = Bundle(path, manifest, sha256(raw).hexdigest(), contents, report)
    try:
        for name in sorted(left_there):
            bundle.files[name] = _open_plain(folder, name)
            _check_digest(name, _hash_file(bundle.files[name], name), manifest)
    except BundleError:
        bundle.close()
        raise
    return bundle


def _check_digest(name: str, found: str, manifest: Manifest) -> None:
    if found != manifest.files[name]:
        raise BundleError(f"{name}: its content is not what the manifest promises (SHA-256 differs)")


def _hash_file(handle: int, name: str) -> str:
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_STREAMED_BYTES:
        raise BundleError(f"{name}: is not a plain file of at most {MAX_STREAMED_BYTES} bytes")
    digest, at = sha256(), 0
    while piece := os.pread(handle, _HASH_CHUNK_BYTES, at):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


def _check_names(found: set[str], manifest: Manifest) -> None:
    expected = {MANIFEST_FILE, *manifest.files}
    for name in sorted(expected - found):
        raise BundleError(f"{name}: named by the manifest, but missing")
    for name in sorted(found - expected - {REPORT_FILE}):
        raise BundleError(f"{name!r}: not named by the manifest")


def _read_file(folder: int, name: str, max_bytes: int) -> bytes:
    """Return the whole content of a plain file directly in the folder, without following links or opening devices."""
    handle = _open_plain(folder, name)
    try:
        return _read_limited(handle, name, max_bytes)
    except OSError as error:
        raise BundleError(f"{name}: {error.strerror}") from None
    finally:
        os.close(handle)


def _open_plain(folder: int, name: str) -> int:
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
