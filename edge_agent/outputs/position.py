"""Positions of outputs in the stream of committed records, one small file each in the agent's state folder."""

import contextlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from wire.process.exit_codes import ExitError
from wire.process.files import read_private_file, write_private_file

OUTPUTS_FOLDER = "outputs"


class OutputPosition(NamedTuple):
    """Up to which event an output is done. `epoch`: of the agent.db that counted it."""

    epoch: str = ""
    event: int = 0


class PositionFile:
    """The position of the output `name`, in `outputs/NAME.json` of the state folder."""

    def __init__(self, state: Path, name: str) -> None:
        self._path = state / OUTPUTS_FOLDER / f"{name}.json"

    def read(self) -> OutputPosition | None:
        """The position; None if there is none yet. One that cannot be read is the beginning: at least once."""
        if not self._path.exists():
            return None
        with contextlib.suppress(ExitError, msgspec.DecodeError):
            return msgspec.json.decode(read_private_file(self._path), type=OutputPosition)
        return OutputPosition()

    def write(self, position: OutputPosition) -> None:
        """Write it durably. Raises ExitError(DISK)."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        write_private_file(self._path, msgspec.json.encode(position))
