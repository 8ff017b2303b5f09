"""Restore of a backup: it is read whole and checked beside the state, then put into its place.

Rule: what is there is touched after the last digest was right, and is then put aside, not deleted. Files change their
place by renames under the lock of the folder; a mark in it keeps every process from starting on a state that is
half in its place, should the machine go down between two of them.
"""

import hashlib
import json
import os
import secrets
import shutil
import tarfile
import time
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import msgspec

from wire.backup.archive import (
    CONFIGURATION,
    FORMAT,
    MANIFEST,
    MAX_DEPTH,
    REPLACED,
    STAGING,
    STATE,
    BackupKind,
    BackupManifest,
    FileFacts,
    ProgressReport,
    ignore_progress,
    read_blocks,
)
from wire.backup.sealing import ByteSource, Secrets, open_source
from wire.process.daemon import RESTORING_MARK, FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import create_private_file, sync_folder, write_private_file

_MAX_MANIFEST_BYTES = 64 << 20
_MAX_CONFIG_BYTES = 1 << 20
_LOCK = "lock"


class RestoreRequest(NamedTuple):
    """What to restore from, and how it is opened. `force`: what is in the folder is put aside."""

    source: Path
    kind: BackupKind
    opening: Secrets = Secrets()
    force: bool = False
    report: ProgressReport = ignore_progress


class RestoredState(NamedTuple):
    """A state that is in its place. `aside`: where what was there is now, None if nothing was."""

    manifest: BackupManifest
    aside: Path | None


Preparation = Callable[[Path, BackupManifest], None]  # of the files, before they are put into their place


def restore_state(request: RestoreRequest, folder: Path, prepare: Preparation) -> RestoredState:
    """Put a backup's state into `folder`, which is made if it is not there.

    `prepare` makes the copy fit to be served, and refuses one that cannot be. ExitError(LOCKED) if a process runs on
    the folder, (USAGE) if it holds something and `force` is not set, (DATABASE) for what is damaged, no backup, or of
    something else, (CREDENTIALS) if it does not open, (DISK). Until all is checked, the folder stays as it was.
    """
    with _on_disk(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FolderLock(folder, restoring=True), ExitStack() as undo:
        if not request.force and (held := list(_list_held(folder))):
            raise ExitError(
                ExitCode.USAGE, f"{folder} is not empty ({held[0].name}, ...): another folder, or --force puts it aside"
            )
        staged = folder / f"{STAGING}{secrets.token_hex(4)}"
        undo.callback(shutil.rmtree, staged, ignore_errors=True)
        with _on_disk(folder):
            manifest = _extract(request, staged)
            prepare(staged / STATE, manifest)
            aside = _put_in_place(folder, staged / STATE)
    return RestoredState(manifest, aside)


def read_configuration(request: RestoreRequest) -> bytes:
    """The configuration file that a backup holds, b"" if it has none; ExitError as `restore_state` says.

    Its digest is checked by the restore that follows.
    """
    found = b""
    with _open_archive(request) as tar:
        for entry in tar:
            if entry.name == MANIFEST:
                _read_manifest(tar.extractfile(entry), request)
            elif entry.name == CONFIGURATION and entry.isreg() and entry.size <= _MAX_CONFIG_BYTES:
                file = tar.extractfile(entry)
                found = file.read() if file else b""
    return found


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{folder}: {error.strerror}; the state is as it was") from None


def _list_held(folder: Path) -> Iterator[Path]:
    """What of a state lies in the folder: neither its lock nor what an earlier restore has left."""
    for path in sorted(folder.iterdir()):
        if path.name not in (_LOCK, RESTORING_MARK) and not path.name.startswith((REPLACED, STAGING)):
            yield path


class _SourceWithEnd:
    """Gives the end of `source` once, and EOFError after it: tarfile would skip what is not there, up to 2^88 bytes."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, b"" at the end."""
        if self._ended:
            raise EOFError("unexpected end of data")
        data = self._source.read(size)
        self._ended = not data
        return data


@contextmanager
def _open_archive(request: RestoreRequest) -> Iterator[tarfile.TarFile]:
    """The archive as a stream. ExitError(DATABASE) for whatever is no whole archive, (MISSING) if there is none."""
    name = str(request.source)
    try:
        with request.source.open("rb") as file:
            source = _SourceWithEnd(open_source(file, name, request.opening))
            with tarfile.open(fileobj=source, mode="r|") as tar:  # type: ignore[call-overload]  # a stream
                yield tar
    except FileNotFoundError:
        raise ExitError(ExitCode.MISSING, f"{name} is not there") from None
    except (tarfile.TarError, EOFError, ValueError) as error:  # ValueError: of numbers and texts that are none
        raise ExitError(ExitCode.DATABASE, f"{name} is no backup, or is damaged: {error}") from None


def _extract(request: RestoreRequest, staged: Path) -> BackupManifest:
    """Write what the archive holds below `staged`, and check it against the manifest at its end."""
    name = str(request.source)
    written: dict[str, FileFacts] = {}
    manifest: BackupManifest | None = None
    (staged / STATE).mkdir(mode=0o700, parents=True)
    with _open_archive(request) as tar:
        for entry in tar:
            if manifest is not None or entry.name in written:
                raise ExitError(ExitCode.DATABASE, f"{name} is damaged: {entry.name[:100]} is in it twice or too late")
            if entry.name == MANIFEST:
                manifest = _read_manifest(tar.extractfile(entry), request)
                continue
            try:
                written[entry.name] = _write_entry(tar, entry, staged, written)
            except (ValueError, FileExistsError):
                raise ExitError(ExitCode.DATABASE, f"{name} holds what no backup does: {entry.name[:100]!r}") from None
            request.report(entry.size)
    if manifest is None:
        raise ExitError(ExitCode.DATABASE, f"{name} is no backup, or was cut off: it has no manifest")
    for path in sorted({*written, *manifest.files}):
        if written.get(path) != manifest.files.get(path):
            raise ExitError(ExitCode.DATABASE, f"{name} is damaged: {path} is not as its manifest says")
    return manifest


def _read_manifest(file: IO[bytes] | None, request: RestoreRequest) -> BackupManifest:
    name = request.source
    data = file.read(_MAX_MANIFEST_BYTES) if file else b""
    try:
        told = json.loads(data)
        if isinstance(told, dict) and told.get("format", 0) > FORMAT:
            raise ExitError(ExitCode.DATABASE, f"{name} was written by a newer version: update this one")
        manifest = msgspec.convert(told, BackupManifest)
    except (ValueError, TypeError, RecursionError, msgspec.ValidationError):
        raise ExitError(ExitCode.DATABASE, f"{name} is no backup, or is damaged: its manifest is none") from None
    if manifest.kind is not request.kind:
        raise ExitError(
            ExitCode.DATABASE, f"{name} is a backup of {_NAMES[manifest.kind]}, not of {_NAMES[request.kind]}"
        )
    return manifest


_NAMES = {BackupKind.AGENT: "an agent", BackupKind.HUB: "a hub", BackupKind.KEYS: "a folder of keys"}


def _write_entry(tar: tarfile.TarFile, entry: tarfile.TarInfo, staged: Path, written: Container[str]) -> FileFacts:
    """Write a file or a link below `staged`. ValueError for what no backup holds, FileExistsError for a second one.

    What lies above it is a folder that was made here, never a link or a file of the archive: nothing leads out.
    """
    path = PurePosixPath(entry.name)
    if not _is_of_a_backup(entry, path) or any(str(parent) in written for parent in path.parents):
        raise ValueError
    target = staged / path
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if entry.issym():
        target.symlink_to(entry.linkname)
        return FileFacts(0, hashlib.sha256(entry.linkname.encode()).hexdigest(), 0o777, entry.linkname)
    mode, size, digest = entry.mode & 0o755, 0, hashlib.sha256()
    source = tar.extractfile(entry)
    with create_private_file(target) as file:
        for block in read_blocks(source.read if source else lambda _size: b""):
            digest.update(block)
            size += file.write(block)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), mode)
    return FileFacts(size, digest.hexdigest(), mode)


def _is_of_a_backup(entry: tarfile.TarInfo, path: PurePosixPath) -> bool:
    """Whether a backup may hold this: a file that is no larger than its bytes in the archive, or a link to such a one.

    A sparse file is neither: 2 KB of an archive would fill a disk with its holes.
    """
    named = entry.name == str(path) and ".." not in path.parts and len(path.parts) <= MAX_DEPTH
    placed = entry.name.startswith(STATE) or entry.name == CONFIGURATION
    linked = entry.issym() and _stays_inside(path, entry.linkname)
    return named and placed and (linked or (entry.isreg() and not entry.issparse()))


def _stays_inside(path: PurePosixPath, link: str) -> bool:
    """Whether a relative link leads to something in the state folder."""
    if not link or PurePosixPath(link).is_absolute():
        return False
    reached = os.path.normpath(path.parent / link)
    return reached.startswith(STATE)


def _put_in_place(folder: Path, restored: Path) -> Path | None:
    """Rename what is there aside and what is restored into its place; the mark stands while that is half done."""
    write_private_file(folder / RESTORING_MARK, b"a restore is half done: run it again with --force\n")
    held = list(_list_held(folder))
    aside = folder / f"{REPLACED}{time.time_ns() // 1_000_000}" if held else None
    if aside:
        aside.mkdir(mode=0o700)
        for path in held:
            path.rename(aside / path.name)
    for path in sorted(restored.iterdir()):
        path.rename(folder / path.name)
    sync_folder(folder)
    (folder / RESTORING_MARK).unlink()
    sync_folder(folder)
    return aside
