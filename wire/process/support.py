"""Archive for whoever helps: what a checkup, versions, status and configuration say, with secrets taken out.

Rule: nothing of a question, a sample, an answer or a key is in it: rows are counted and files are named, neither is
read. Rule: what a text could hold of secrets is replaced before it is shown to the person who sends it.
"""

import gzip
import importlib.metadata
import io
import json
import os
import platform
import re
import sqlite3
import stat
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.findings import Finding

REDACTED = "[redacted]"
MAX_NAMES = 5000
_SECRET_KEY = re.compile(
    r"""^(?P<head>[ \t]*["']?[\w.-]*(?:token|password|passwd|secret|api_key|private_key)["']?\s*[=:]\s*)"""
    r""".+?(?P<tail>,?)$""",
    re.IGNORECASE | re.MULTILINE,
)
_URL_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,40}://)[^/@\s\"']+@", re.IGNORECASE)
_URL_PATH = re.compile(r"""^(?P<head>[ \t]*["']?url["']?\s*[=:]\s*["']https?://[^/"']+/)[^"']+""", re.MULTILINE)
_BEARER = re.compile(r"(?P<word>bearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_OWN_SECRETS = re.compile(
    r"skerry1:[\w=.:-]+|sk-[\w-]{8,}|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL
)


class SupportFile(NamedTuple):
    """One file of the archive."""

    name: str
    data: bytes


def redact(text: str) -> str:
    """A text without what could be a secret: values of keys called so, users and paths of URLs, invites, keys."""
    text = _OWN_SECRETS.sub(REDACTED, text)
    text = _SECRET_KEY.sub(lambda found: f'{found["head"]}"{REDACTED}"{found["tail"]}', text)
    text = _URL_USER.sub(lambda found: f"{found['scheme']}{REDACTED}@", text)
    text = _URL_PATH.sub(lambda found: f"{found['head']}{REDACTED}", text)  # a webhook's path is often its secret
    return _BEARER.sub(lambda found: f"{found['word']}{REDACTED}", text)


def collect_files(
    findings: Sequence[Finding], config: Path | None, folder: Path | None, status: Mapping[str, Any] | None
) -> list[SupportFile]:
    """Everything that goes in.

    `folder`: the state folder, None where a configuration that cannot be read would name it; `status`: of the running
    process, None if none runs.
    """
    versions = {
        "skerry": importlib.metadata.version("skerry"), "python": sys.version, "system": platform.platform(),
        "packages": sorted(f"{each.name}=={each.version}" for each in importlib.metadata.distributions()),
    }  # fmt: skip
    texts = {
        "checkup.json": _encode([found._asdict() for found in findings]),
        "versions.json": _encode(versions),
        "status.json": _encode(status if status is not None else {"running": False}),
        "rows.json": _encode(count_rows(folder) if folder else {}),
        "folder.txt": "\n".join(list_folder(folder) if folder else ()) + "\n",
    }
    if config is not None and config.is_file():
        texts["configuration.toml"] = config.read_text(encoding="utf-8", errors="replace")
    return [SupportFile(name, redact(text).encode()) for name, text in sorted(texts.items())]


def offer_archive(
    files: Sequence[SupportFile], target: Path, confirm: Callable[[str], bool], now: datetime
) -> Iterator[str]:
    """Lines that list what is in the archive, then the archive itself if the person confirms.

    ExitError(USAGE) if not, or if it is there already.
    """
    if target.exists():
        raise ExitError(ExitCode.USAGE, f"{target} is there already: name another --out")
    yield from (f"{len(file.data):>9,} B  {file.name}" for file in files)
    yield "no key, token, question, sample or answer is in it; read it before you send it"
    if not confirm(f"write {target}?"):
        raise ExitError(ExitCode.USAGE, "nothing was written: add --yes to write it")
    write_archive(target, files, now)
    yield f"wrote {target}"


def hand_over(files: Sequence[SupportFile], target: Path, *, yes: bool, as_json: bool) -> None:
    """Offer the archive to the person at the terminal. `yes`: write it unasked; `as_json`: stdout has JSON alone."""
    for line in offer_archive(files, target, lambda question: yes or _confirm(question), datetime.now(UTC)):
        print(line, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps({"archive": str(target), "files": {file.name: len(file.data) for file in files}}))


def _confirm(question: str) -> bool:
    return sys.stdin.isatty() and input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


def count_rows(folder: Path) -> dict[str, dict[str, int] | str]:
    """Rows of each table of each SQLite file in a folder; no row is read."""
    found: dict[str, dict[str, int] | str] = {}
    for path in sorted(folder.glob("*.db")):
        try:
            db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
            try:
                names = [row[0] for row in db.execute("select name from sqlite_master where type = 'table' order by 1")]
                counts = {name: int(db.execute(f'select count(*) from "{name}"').fetchone()[0]) for name in names}  # noqa: S608 - a table's own name
            finally:
                db.close()
        except sqlite3.Error as error:
            found[path.name] = str(error)
            continue
        found[path.name] = counts
    return found


def list_folder(folder: Path) -> Iterable[str]:
    """Mode, size, time and name of everything in a folder, at most `MAX_NAMES`."""
    paths = sorted(path for path in folder.rglob("*") if not path.is_symlink())
    for path in paths[:MAX_NAMES]:
        try:
            facts = path.stat()
        except OSError:
            continue
        when = datetime.fromtimestamp(facts.st_mtime, UTC)
        yield f"{stat.filemode(facts.st_mode)} {facts.st_size:>12} {when:%Y-%m-%d %H:%M:%S} {path.relative_to(folder)}"
    if len(paths) > MAX_NAMES:
        yield f"and {len(paths) - MAX_NAMES} more"


def write_archive(target: Path, files: Sequence[SupportFile], now: datetime) -> None:
    """Write a gzipped tar, readable by its owner alone. ExitError(USAGE) if it is there already, else (DISK)."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for file in files:
            entry = tarfile.TarInfo(f"skerry-support/{file.name}")
            entry.size, entry.mtime, entry.mode = len(file.data), int(now.timestamp()), 0o600
            tar.addfile(entry, io.BytesIO(file.data))
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(packed.getvalue())
    except FileExistsError:
        raise ExitError(ExitCode.USAGE, f"{target} is there already: name another --out") from None
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{target} cannot be written: {error.strerror}") from None


def _encode(value: object) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"
