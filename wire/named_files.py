"""Files that a person names: read whole up to a limit, written only where nothing is. A fault is one line."""

import tomllib
from pathlib import Path
from typing import Any

from wire.exits import Exit, Stop

MAX_FILE_BYTES = 1 << 20


def read_bytes(path: Path, code: Exit, max_bytes: int = MAX_FILE_BYTES, missing: str = "") -> bytes:
    """Stop(code) for anything else; `missing` is what to do next where there is no such file."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise Stop(code, f"{path}: {error.strerror}{missing and f'; {missing}'}") from None
    except OSError as error:
        raise Stop(code, f"{path}: {error.strerror}") from None
    if len(data) > max_bytes:
        raise Stop(code, f"{path}: longer than {max_bytes} bytes")
    return data


def read_text(path: Path, code: Exit, max_bytes: int = MAX_FILE_BYTES, missing: str = "") -> str:
    """UTF-8; Stop(code) for anything else."""
    try:
        return read_bytes(path, code, max_bytes, missing).decode()
    except UnicodeDecodeError:
        raise Stop(code, f"{path}: not UTF-8 text") from None


def read_toml(path: Path, code: Exit, missing: str = "") -> dict[str, Any]:
    """Parsed, not judged; Stop(code) for anything else."""
    try:
        return tomllib.loads(read_bytes(path, code, missing=missing).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Stop(code, f"{path}: not TOML: {error}") from None


def write_new(path: Path, text: str) -> None:
    """Stop(CONFIG) if it is there, Stop(DISK) if it cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Stop(Exit.CONFIG, f"{path} is there already; it was not touched: name another file") from None
    except OSError as error:
        raise Stop(Exit.DISK, f"{path}: {error.strerror}") from None
