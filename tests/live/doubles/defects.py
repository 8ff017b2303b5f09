"""Finds the defects that hubs and agents have logged: what no test expects, whatever else the test looks at."""

import json
from pathlib import Path
from typing import Any


class DefectFinder:
    """Reads the log files under a folder as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def find_new(self) -> list[str]:
        """Lines about defects that were written since the last call, each with its file."""
        return [f"{path}: {line}" for path in sorted(self._folder.rglob("*.log")) for line in self._read_new(path)]

    def _read_new(self, path: Path) -> list[str]:
        size, begin = path.stat().st_size, self._read.get(path, 0)
        if size == begin:
            return []
        self._read[path] = size
        with path.open("rb") as file:
            file.seek(begin if begin < size else 0)
            lines = file.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.startswith('{"at":') and _tells_defect(line)]


def _tells_defect(line: str) -> bool:
    """Whether a line has the frames of an exception, or a library reports an error."""
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return False  # half a line: the process was killed
    return "frames" in found or (found.get("event"), found.get("level")) == ("library", "error")
