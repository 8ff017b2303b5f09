"""Archive of a state folder: consistent copies of its databases and its files, with a manifest of digests at the end.

It is a tar, which `tar -tf` lists where it is not sealed. Rule: a backup is written under a temporary name and renamed
once it is whole and on the disk; whatever fails leaves nothing. Rule: a database is copied by SQLite's online backup,
which sees one moment of it while a process writes (https://www.sqlite.org/backup.html), and the copy is checked.
"""

import hashlib
import io
import os
import secrets
import shutil
import sqlite3
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from wire.backup.sealing import ByteSink, Seal, SealingWriter
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import create_private_file, sync_folder

FORMAT = 1
MANIFEST = "manifest.json"
CONFIGURATION = "configuration.toml"
STATE = "state/"  # before the paths of the state folder
MAX_DEPTH = 100  # parts of a path
REPLACED = ".before-restore-"  # before the name of what a restore has put aside in a state folder
STAGING = ".restoring-"
_SQLITE = b"SQLite format 3\0"
_TRIES = 3
_BLOCK = 1 << 20
_LEFT_OUT = ("lock", "api.json")  # of a running process
_SIDE_FILES = ("-wal", "-shm", "-journal")
_GROWING = ".jsonl"  # what is appended to while it is copied


class BackupKind(StrEnum):
    """What a backup is of."""

    AGENT = "agent"
    HUB = "hub"
    KEYS = "keys"


class FileFacts(msgspec.Struct, frozen=True):
    """One file of a backup. `link`: where a symbolic link leads, "" for a file."""

    size: int
    sha256: str
    mode: int
    link: str = ""


class BackupManifest(msgspec.Struct, frozen=True):
    """What a backup holds, and of what. `name`: the device, the hub. `notes`: what the owner adds, in words."""

    kind: BackupKind
    name: str
    release: str
    created_ms: int
    files: dict[str, FileFacts]
    notes: dict[str, str] = {}
    format: int = FORMAT


ProgressReport = Callable[[int], None]  # bytes that were copied since the last call


def ignore_progress(_size: int) -> None:
    """Report nothing."""


class BackupPlan(NamedTuple):
    """What to back up. `config`: the process's file, if any; `left_out`: folders of `folder` that can be made anew."""

    kind: BackupKind
    name: str
    release: str
    folder: Path
    config: Path | None = None
    left_out: tuple[str, ...] = ()
    notes: dict[str, str] = {}  # noqa: RUF012 - never changed
    report: ProgressReport = ignore_progress


class BackupResult(NamedTuple):
    """A backup that was written: its manifest and its size in bytes."""

    manifest: BackupManifest
    size: int


class _UnsettledError(Exception):
    """A file changed while it was copied."""


def write_backup(target: Path, plan: BackupPlan, seal: Seal | None, now_ms: int) -> BackupResult:
    """Write a backup to a new file, mode 0600; a process may run on the folder meanwhile.

    ExitError(USAGE) if the file is there already, (MISSING) without a folder, (DISK) if it cannot be written,
    (DATABASE) if a database is damaged, (LOCKED) if files change all the time. In each case nothing is left.
    """
    if target.exists() or target.is_symlink():
        raise ExitError(ExitCode.USAGE, f"{target} is there already: name another file")
    if not plan.folder.is_dir():
        raise ExitError(ExitCode.MISSING, f"{plan.folder} is not there: nothing to back up")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    with ExitStack() as undo:
        undo.callback(_remove_file, temporary)
        try:
            manifest = _write_settled(temporary, plan, seal, now_ms)
            size = temporary.stat().st_size
            temporary.replace(target)
            sync_folder(target.parent)
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{target}: {error.strerror}; nothing was written") from None
        undo.pop_all()
    return BackupResult(manifest, size)


def _remove_file(path: Path) -> None:
    """Remove a file if there is one; what is below a file cannot be there."""
    with suppress(OSError):
        path.unlink()


def _write_settled(temporary: Path, plan: BackupPlan, seal: Seal | None, now_ms: int) -> BackupManifest:
    """Write the archive; once more if files that belong together changed meanwhile."""
    for _ in range(_TRIES):
        try:
            with create_private_file(temporary) as file:
                found = _write_archive(file, temporary.parent, plan, seal, now_ms)
                file.flush()
                os.fsync(file.fileno())
        except _UnsettledError:
            temporary.unlink()
        else:
            return found
    raise ExitError(ExitCode.LOCKED, f"{plan.folder}: its files changed at every try; try again, or stop the process")


def _write_archive(file: BinaryIO, where: Path, plan: BackupPlan, seal: Seal | None, now_ms: int) -> BackupManifest:
    before = list_entries(plan.folder, plan.left_out)
    sink: ByteSink = SealingWriter(file, seal) if seal else file
    # Nothing of a sealed backup lies in the clear elsewhere than it does already.
    scratch = plan.folder if seal else where
    with tarfile.open(fileobj=sink, mode="w|", bufsize=_BLOCK) as tar:  # type: ignore[call-overload]  # only written
        archive = _ArchiveWriter(tar, now_ms, scratch, plan.report)
        try:
            for name in sorted(before):
                archive.add_entry(STATE + name, plan.folder / name)
        except FileNotFoundError:
            raise _UnsettledError from None
        if plan.config is not None:
            archive.add_entry(CONFIGURATION, plan.config)
        if _settled(before) != _settled(list_entries(plan.folder, plan.left_out)):
            raise _UnsettledError
        manifest = BackupManifest(plan.kind, plan.name, plan.release, now_ms, archive.files, plan.notes)
        archive.add_bytes(MANIFEST, msgspec.json.encode(manifest))
    if isinstance(sink, SealingWriter):
        sink.close()
    return manifest


def list_entries(folder: Path, left_out: tuple[str, ...] = ()) -> dict[str, os.stat_result]:
    """Files and symbolic links below a folder by their relative path, without what a process makes anew."""
    found: dict[str, os.stat_result] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        try:
            facts = path.lstat()
        except FileNotFoundError:
            continue
        if (stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode)) and not _is_left_out(name, left_out):
            found[name] = facts
    return found


def _is_left_out(name: str, folders: tuple[str, ...]) -> bool:
    parts = Path(name).parts
    hidden = any(part.startswith((REPLACED, STAGING)) for part in parts)
    temporary = parts[-1].startswith(".") or parts[-1].endswith(_SIDE_FILES) or ".damaged-" in parts[-1]
    return hidden or temporary or parts[-1] in _LEFT_OUT or name in folders or parts[0] in folders


def _settled(entries: dict[str, os.stat_result]) -> dict[str, tuple[int, int, int]]:
    """What tells that a file was not changed; databases have copies of one moment, logs may grow."""
    return {
        name: (facts.st_ino, facts.st_size, facts.st_mtime_ns)
        for name, facts in entries.items()
        if not name.endswith((_GROWING, ".db"))
    }


class _ArchiveWriter:
    """Adds entries to a tar, and knows what it has added."""

    def __init__(self, tar: tarfile.TarFile, now_ms: int, scratch: Path, report: ProgressReport) -> None:
        self.files: dict[str, FileFacts] = {}
        self._tar = tar
        self._now_s = now_ms // 1000
        self._scratch = scratch
        self._report = report

    def add_entry(self, name: str, path: Path) -> None:
        """Add a file, a database or a symbolic link. FileNotFoundError if it has gone meanwhile."""
        if path.is_symlink():
            self._add_link(name, path)
            return
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o755
            if file.read(len(_SQLITE)) == _SQLITE:
                self._add_database(name, path, mode)
                return
            file.seek(0)
            self._add_stream(name, file, os.fstat(file.fileno()).st_size, mode)

    def add_bytes(self, name: str, data: bytes) -> None:
        """Add a file that is in memory; it is not in the manifest."""
        self._tar.addfile(self._entry(name, len(data), 0o600), io.BytesIO(data))

    def _entry(self, name: str, size: int, mode: int) -> tarfile.TarInfo:
        if name.count("/") >= MAX_DEPTH:
            raise ExitError(ExitCode.USAGE, f"{name[:100]}...: more than {MAX_DEPTH} folders deep; nothing was written")
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode, entry.mtime = size, mode, self._now_s
        return entry

    def _add_link(self, name: str, path: Path) -> None:
        target = str(path.readlink())
        entry = self._entry(name, 0, 0o777)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)
        self.files[name] = FileFacts(0, hashlib.sha256(target.encode()).hexdigest(), 0o777, target)

    def _add_stream(self, name: str, file: BinaryIO, size: int, mode: int) -> None:
        counted = _HashingReader(file, size, self._report)
        self._tar.addfile(self._entry(name, size, mode), counted)  # type: ignore[arg-type]  # it reads, no more
        if counted.left:
            raise _UnsettledError  # it was cut while it was copied
        self.files[name] = FileFacts(size, counted.hash.hexdigest(), mode)

    def _add_database(self, name: str, path: Path, mode: int) -> None:
        """Add a copy of a database, which has no name any more while it is added.

        ExitError(DISK) if the copy would fill the disk that a process works on.
        """
        size = path.stat().st_size
        if shutil.disk_usage(self._scratch).free < 2 * size:
            raise ExitError(ExitCode.DISK, f"{self._scratch}: no room for a copy of {path.name}; nothing was written")
        staged = self._scratch / f".{path.name}.{secrets.token_hex(4)}"
        with create_private_file(staged) as file:
            try:
                copy_database(path, staged)
            finally:
                staged.unlink()
            self._add_stream(name, file, file.seek(0, os.SEEK_END), mode)


class _HashingReader:
    """Reads `size` bytes of a file, from its beginning, and hashes them."""

    def __init__(self, file: BinaryIO, size: int, report: ProgressReport) -> None:
        file.seek(0)
        self._report = report
        self._file = file
        self.left = size
        self.hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self.left))
        self.left -= len(data)
        self.hash.update(data)
        self._report(len(data))
        return data


def copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite file as it is at one moment, whoever writes meanwhile, and check the copy.

    Beside the source nothing is made: a log that was not there would tell its process that none was lost.
    ExitError(DATABASE) if it is damaged, (DISK) if there is no room for the copy.
    """
    log = source.with_name(f"{source.name}-wal")
    try:
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            for pragma in ("journal_mode=memory", "synchronous=off"):
                copy.execute(f"pragma {pragma}")
            used = log.exists()
            _copy_pages(source, copy, "mode=ro" if used else "immutable=1")
            if not used and log.exists():  # its process started meanwhile
                _copy_pages(source, copy, "mode=ro")
            copy.execute("pragma journal_mode=delete")  # a file alone: its process turns the log on again
            told = copy.execute("pragma quick_check(1)").fetchone()
    except sqlite3.Error as error:
        full = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
        code = ExitCode.DISK if full else ExitCode.DATABASE
        raise ExitError(code, f"{source}: {error}; nothing was written") from None
    if told != ("ok",):
        raise ExitError(ExitCode.DATABASE, f"{source} is damaged ({told[0]}): nothing was written")


def _copy_pages(source: Path, copy: sqlite3.Connection, how: str) -> None:
    with closing(sqlite3.connect(f"{source.absolute().as_uri()}?{how}", uri=True, timeout=10)) as origin:
        origin.backup(copy)


def read_blocks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Blocks of what is left to read."""
    while block := read(_BLOCK):
        yield block
