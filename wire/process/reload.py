"""Reload of a running process's configuration: what changed, what of it counts at once, and what waits for a restart.

Rule: a file counts as a whole or not at all. One wrong key among ten changes nothing; the line that says so stays in
the status until a reload is taken. What only a restart can change is named there for as long as file and process
differ.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wire.process.daemon import read_lock_owner
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog, SafeName, safe_text

STATUS_FIELD = "reload"  # of a process's status
REFUSED_ALARM = "reload_refused"
_WAIT_S = 20.0
_POLL_S = 0.05


class ConfigChange(NamedTuple):
    """Keys in which a file differs from what a process goes by: those it can take now, those that need a restart."""

    live: tuple[str, ...]
    restart: tuple[str, ...]


class ReloadRecord:
    """What a process goes by, and how its reloads ended. A provider of its status.

    Values are by their key as it stands in the file, e.g. "api.port"; a list of tables is one. `live`: keys that a
    running process can change, or a whole table as "records.".
    """

    def __init__(self, running: Mapping[str, Any], live: tuple[str, ...], log: JsonLog) -> None:
        self._running = dict(running)
        self._live = live
        self._log = log
        self._count = 0
        self._refused = ""
        self._applied: tuple[str, ...] = ()
        self._restart: tuple[str, ...] = ()

    def compare(self, new: Mapping[str, Any]) -> ConfigChange:
        """Compare a file with what the process goes by."""
        changed = sorted(key for key, value in new.items() if value != self._running.get(key))
        live = tuple(key for key in changed if self._is_live(key))
        return ConfigChange(live, tuple(key for key in changed if key not in live))

    def _is_live(self, key: str) -> bool:
        return key in self._live or f"{key.partition('.')[0]}." in self._live

    def note_taken(self, new: Mapping[str, Any], change: ConfigChange, more: tuple[str, ...] = ()) -> None:
        """A file was taken: its live keys count. `more`: contents of files that were read again and were new."""
        self._running |= {key: new[key] for key in change.live}
        self._count += 1
        self._refused, self._applied, self._restart = "", (*change.live, *more), change.restart
        told = self._log.warning if change.restart else self._log.info
        told("reloaded", changed=_name_keys(self._applied), needs_restart=_name_keys(change.restart))

    def note_refused(self, error: Exception) -> None:
        """A file was refused: everything is as it was."""
        self._count += 1
        self._refused, self._applied = str(error).replace("\n", " ")[:300], ()
        self._log.error("reload_refused", error=safe_text(self._refused))

    def status_fields(self) -> dict[str, Any]:
        """`count` of reloads, the keys that the last one changed, why it was refused, and what needs a restart."""
        told = {"changed": list(self._applied), "needs_restart": list(self._restart)}
        return {STATUS_FIELD: {"count": self._count, "refused": self._refused, **told}}

    def alarms(self) -> set[str]:
        """`reload_refused` until a file is taken."""
        return {REFUSED_ALARM} if self._refused else set()


def _name_keys(keys: tuple[str, ...]) -> SafeName:
    return safe_text("/".join(keys))


def request_reload(folder: Path, read_status: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Have the process of a state folder read its configuration again (SIGHUP); returns how that ended.

    ExitError(NOT_FOUND) if none runs there, (CREDENTIALS) if it is another user's, (HUB) if it does not say how it
    ended within 20 s.
    """
    pid = read_lock_owner(folder)
    if pid is None:
        raise ExitError(ExitCode.NOT_FOUND, f"nothing runs on {folder}: its next start reads the configuration")
    known = _try_status(read_status)
    before = _read_count(known) if known is not None else -1
    try:
        os.kill(pid, signal.SIGHUP)
    except PermissionError:
        raise ExitError(ExitCode.CREDENTIALS, f"process {pid} is another user's: `systemctl reload`, as root") from None
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        found = _try_status(read_status)
        if found is not None and _read_count(found) > before:
            return dict(found[STATUS_FIELD])
        time.sleep(_POLL_S)
    raise ExitError(ExitCode.HUB, f"process {pid} did not say within {_WAIT_S:g} s how its reload ended; see its log")


def _try_status(read_status: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The status; None while the process asks for another token than its file has: that is what a reload is for."""
    try:
        return read_status()
    except ExitError as error:
        if error.code is ExitCode.CREDENTIALS:
            return None
        raise


def _read_count(status: Mapping[str, Any]) -> int:
    try:
        return int(status[STATUS_FIELD]["count"])
    except (KeyError, TypeError):
        raise ExitError(ExitCode.HUB, "it is of an earlier version, which SIGHUP may end: restart it") from None


def describe_reload(found: Mapping[str, Any]) -> list[str]:
    """Lines for people: what a reload changed, and what waits for a restart. ExitError(CONFIG) if it was refused."""
    if found["refused"]:
        raise ExitError(ExitCode.CONFIG, f"refused, everything is as it was: {found['refused']}")
    changed = ", ".join(found["changed"]) or "nothing"
    return [f"changed        {changed}", f"needs restart  {', '.join(found['needs_restart']) or 'nothing'}"]
