"""File access of a process: private files (mode 0600), atomic durable writes, and reads with a size limit.

Rule: a failure is an `ExitError` of one line; a file that a person names is never overwritten.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from wire.process.exit_codes import ExitCode, ExitError
from wire.text import decode_text
from wire.toml import parse_toml

MAX_FILE_BYTES = 1 << 20
MAX_FORMER_BYTES = 256 << 20  # of an earlier result that is looked at before it is replaced
_SIDE_FILES = ("-wal", "-shm")  # of an SQLite database
# The folder that holds the packages: a child process is started there so that it finds them in a checkout too.
PACKAGES_FOLDER = Path(__file__).parents[2]


class FileOwner(NamedTuple):
    """The numbers of a user and a group that a file belongs to."""

    user: int
    group: int


def write_private_file(path: Path, data: bytes, *, synced: bool = True, owner: FileOwner | None = None) -> None:
    """Write a file atomically, mode 0600 from the first byte on.

    The data and the folder are synced; if `synced` is False, a power cut may undo it. `owner`: whom root gives it to.
    Raises ExitError(DISK) if the folder cannot take it.
    """
    try:
        replace_private_file(path, data, synced=synced, owner=owner)
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{path}: {error.strerror}") from None


def replace_private_file(path: Path, data: bytes, *, synced: bool = True, owner: FileOwner | None = None) -> None:
    """As `write_private_file`, for a process that goes on without the file: OSError if the folder cannot take it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            if owner is not None:
                os.fchown(fd, *owner)
            file.write(data)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        temporary.replace(path)
        if synced:
            sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):  # such as the path below a file
            temporary.unlink()
        raise


def create_private_file(path: Path) -> BinaryIO:
    """Create a file to write and read, mode 0600 from the first byte on. OSError if it is there, or cannot be."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b")


def read_private_file(path: Path, max_bytes: int = 65536) -> bytes:
    """Read a secret file, at most `max_bytes`.

    Raises ExitError(CREDENTIALS) if others may read it or if it is unreadable, ExitError(MISSING) if it is not there.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise ExitError(ExitCode.CREDENTIALS, f"{path} can be read by others; run: chmod 600 {path}")
            return file.read(max_bytes)
    except FileNotFoundError as error:
        raise ExitError(ExitCode.MISSING, f"{path}: {error.strerror}") from None
    except OSError as error:
        raise ExitError(ExitCode.CREDENTIALS, f"{path}: {error.strerror}") from None


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk: a rename is durable only after that."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def set_database_aside(path: Path) -> str:
    """Rename a damaged SQLite database with its side files; returns its new name, `NAME.damaged-MILLISECONDS`."""
    name = f"{path.name}.damaged-{time.time_ns() // 1_000_000}"
    for suffix in ("", *_SIDE_FILES):
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.rename(path.with_name(name + suffix))
    sync_folder(path.parent)
    return name


def list_set_aside(path: Path) -> list[str]:
    """Names of the databases that were set aside for the one at `path`, oldest first."""
    found = path.parent.glob(f"{path.name}.damaged-*")
    return sorted(each.name for each in found if not each.name.endswith(_SIDE_FILES))


def read_file_bytes(path: Path, code: ExitCode, max_bytes: int = MAX_FILE_BYTES, missing: str = "") -> bytes:
    """Read a file of at most `max_bytes`.

    Raises ExitError(code) if it is unreadable or longer, ExitError(MISSING) if it is not there; `missing` says what to
    do then.
    """
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise ExitError(ExitCode.MISSING, f"{path}: {error.strerror}{missing and f'; {missing}'}") from None
    except OSError as error:
        raise ExitError(code, f"{path}: {error.strerror}") from None
    if len(data) > max_bytes:
        raise ExitError(code, f"{path}: longer than {max_bytes} bytes")
    return data


def read_file_text(path: Path, code: ExitCode, max_bytes: int = MAX_FILE_BYTES, missing: str = "") -> str:
    """Read a UTF-8 text file of at most `max_bytes`.

    Raises ExitError(code) as `read_file_bytes`, and for another encoding.
    """
    try:
        return decode_text(read_file_bytes(path, code, max_bytes, missing))
    except ValueError as error:
        raise ExitError(code, f"{path}: {error}") from None


def read_private_text(path: Path) -> str:
    """Read a secret of text, such as a token or a password, without the space around it.

    Raises ExitError(CREDENTIALS) as `read_private_file`, and for another encoding.
    """
    try:
        return decode_text(read_private_file(path)).strip()
    except ValueError as error:
        raise ExitError(ExitCode.CREDENTIALS, f"{path}: {error}") from None


def read_toml_file(path: Path, code: ExitCode, missing: str = "") -> dict[str, Any]:
    """Parse a TOML file; its keys are not checked here. Raises ExitError(code) if it is not TOML in UTF-8."""
    try:
        return parse_toml(decode_text(read_file_bytes(path, code, missing=missing)))
    except ValueError as error:
        raise ExitError(code, f"{path}: not TOML: {error}") from None


def check_result_place(path: Path, is_former: Callable[[bytes], bool] | None = None) -> None:
    """Check, before work is done for it, that a result may be written to `path`.

    `is_former`: whether a file's content is an earlier result of the same kind, which may be replaced. Raises
    ExitError(USAGE) if anything else is there already; a device or pipe such as /dev/stdout is none that is lost.
    """
    other = "it was not touched: name another file"
    if path.is_dir():
        raise ExitError(ExitCode.USAGE, f"{path} is a folder; {other}")
    if _is_stream(path) or not (path.is_symlink() or path.exists()):
        return
    if path.is_symlink() or is_former is None:
        raise ExitError(ExitCode.USAGE, f"{path} is there already; {other}")
    if not is_former(read_file_bytes(path, ExitCode.USAGE, MAX_FORMER_BYTES)):
        raise ExitError(ExitCode.USAGE, f"{path} is there already and is not what this command writes; {other}")


def write_result(
    path: Path, data: bytes, is_former: Callable[[bytes], bool] | None = None, *, mode: int = 0o644
) -> None:
    """Write a command's result in one step: to a new file, in the place of a former result, or into a stream.

    Raises ExitError(USAGE) as `check_result_place`, ExitError(DISK) if it cannot be written.
    """
    check_result_place(path, is_former)
    try:
        if _is_stream(path):
            path.write_bytes(data)
            return
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
                file.write(data)
            if path.exists():
                temporary.replace(path)
            else:
                os.link(temporary, path, follow_symlinks=False)  # unlike a rename, it replaces nothing
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{path}: {error.strerror}") from None


def _is_stream(path: Path) -> bool:
    """Whether bytes written there go to a device, a pipe or a socket: nothing is lost by it."""
    return path.exists() and not path.is_file() and not path.is_dir()


def replace_text_file(path: Path, text: str) -> None:
    """Replace the text of a file that a person has named for it, whole or not at all; its mode stays.

    Raises ExitError(DISK) if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ExitError(ExitCode.DISK, f"{path}: {error.strerror}") from None


def write_new_file(path: Path, text: str) -> None:
    """Write a file that must not exist yet.

    Raises ExitError(CONFIG) if it does, ExitError(DISK) if it cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ExitError(ExitCode.CONFIG, f"{path} is there already; it was not touched: name another file") from None
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{path}: {error.strerror}") from None
