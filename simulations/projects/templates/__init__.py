"""What `skerry new` writes: the files of a kind, with the project's name and today's date put in.

Rule: a file of a template is a whole file as it stands, but for `NAME`, the policy's dates and its class of samples.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from wire.process.exit_codes import ExitCode, ExitError

POLICY_LIFE = timedelta(days=365)
_HERE = Path(__file__).parent
_ENDING = ".txt"  # so that no tool takes a template for the project's own code


class ProjectKind(StrEnum):
    """What the samples of a project are."""

    CAMERA = "camera"
    SIGNAL = "signal"
    TABLE = "table"
    TEXT = "text"


_FOLDERS = {  # the later wins
    ProjectKind.CAMERA: ("all", "trained", "camera"),
    ProjectKind.SIGNAL: ("all", "trained", "signal"),
    ProjectKind.TABLE: ("all", "trained", "table"),
    ProjectKind.TEXT: ("all", "text"),
}
_SAMPLES = {ProjectKind.CAMERA: "picture", ProjectKind.SIGNAL: "reading", ProjectKind.TABLE: "row"}


def write_project(folder: Path, kind: ProjectKind) -> list[str]:
    """Write a project into a new folder, and return the names of its files.

    ExitError(USAGE) for a name that cannot be one, or a folder that is there already and not empty; (DISK) if it
    cannot be written.
    """
    name = folder.absolute().name
    if not name.isascii() or not name.replace("-", "").isalnum() or name != name.lower() or len(name) > 40:
        raise ExitError(ExitCode.USAGE, f"{name[:40]!r} is no name: small letters, digits and '-', at most 40")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExitError(ExitCode.USAGE, f"{folder} is there already: choose another name")
    sources = [path for part in _FOLDERS[kind] for path in sorted((_HERE / part).glob(f"*{_ENDING}"))]
    names = [path.name.removesuffix(_ENDING) for path in sources]
    words = {"NAME": name, "SAMPLE": _SAMPLES.get(kind, "")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, written in zip(sources, names, strict=True):
            (folder / written).write_text(_fill(path.read_text(encoding="utf-8"), words), encoding="utf-8")
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{error.filename}: {error.strerror}") from None
    return sorted(names)


def _fill(text: str, words: Mapping[str, str]) -> str:
    today = datetime.now(UTC).date()
    for word, put in {**words, "ISSUED": f"{today}", "EXPIRES": f"{today + POLICY_LIFE}"}.items():
        text = text.replace(word, put)
    return text
