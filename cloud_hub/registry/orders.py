"""What people have ordered of a hub for good: notices that deny all, and the lowest version of each policy it serves.

Rule: an order is on disk before it counts, only ever narrows, and is not taken back here: a notice ends for whoever has
a policy whose `clears_notice` reaches its counter, and a floor never sinks. Nothing that a device says changes either.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from policies.model.policy import Part
from wire.errors import LocalError
from wire.process.exit_codes import Exit, ExitError
from wire.process.files import read_private, write_private
from wire.protocol.messages import DenyAll
from wire.protocol.topics import check_id, tenant_of

EVERYBODY = ""
MAX_WHY_CHARS = 200
MAX_BYTES = 8 << 20


class Notice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing may leave. `scope`: a device's id, a tenant, or "" for everybody."""

    counter: int
    why: str
    scope: str
    issued_ms: int

    def note(self) -> DenyAll:
        """As devices hear it."""
        return DenyAll(0, self.counter, self.why)

    def meets(self, device: str) -> bool:
        return self.scope in (EVERYBODY, device, tenant_of(device))


class Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One document that this hub was ever given, whatever became of it."""

    title: str
    version: int


class _File(msgspec.Struct, forbid_unknown_fields=True):
    notices: tuple[Notice, ...] = ()
    floors: dict[str, int] = {}
    seen: dict[str, Seen] = {}


class Orders:
    """All of a hub's orders; `path` None keeps them in memory, for tests and simulations."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._file = _read(path) if path is not None and path.exists() else _File()

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The newest of each scope."""
        return self._file.notices

    @property
    def floors(self) -> Mapping[str, int]:
        """`layer/name` of a policy -> the lowest version that is served."""
        return self._file.floors

    def notice(self, device: str) -> Notice | None:
        """The newest that meets this device."""
        met = [notice for notice in self._file.notices if notice.meets(device)]
        return max(met, key=lambda notice: notice.counter, default=None)

    def deny_all(self, scope: str, why: str, now_ms: int) -> Notice:
        """Durable when it returns. Its counter is above that of every notice before, also of another hub's."""
        counter = max((each.counter for each in self._file.notices), default=0) + 1
        notice = Notice(max(counter, now_ms // 1000), said(why), scoped(scope), now_ms)
        others = tuple(each for each in self._file.notices if each.scope != notice.scope)
        self._keep(_File((*others, notice), self._file.floors, self._file.seen))
        return notice

    def learn(self, documents: Iterable[Part]) -> None:
        """These are served: of each name none that is older than the oldest of them. Durable when it returns."""
        given = tuple(documents)
        seen = self._file.seen | {each.hash: Seen(f"{each.layer}/{each.name}", each.version) for each in given}
        floors = dict(self._file.floors)
        for name in {seen[each.hash].title for each in given}:
            oldest = min(each.version for each in given if seen[each.hash].title == name)
            floors[name] = max(oldest, floors.get(name, 0))
        if (floors, seen) != (self._file.floors, self._file.seen):
            self._keep(_File(self._file.notices, floors, seen))

    def is_old(self, document: str) -> bool:
        """Whether the document of this hash is below its floor. One that we were never given is not known to be."""
        seen = self._file.seen.get(document)
        return seen is not None and seen.version < self._file.floors.get(seen.title, 0)

    def _keep(self, file: _File) -> None:
        if self._path is not None:
            write_private(self._path, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")
        self._file = file


def scoped(scope: str) -> str:
    """A scope that may stand. LocalError otherwise."""
    return check_id(scope) if scope else EVERYBODY


def said(why: str) -> str:
    """The reason as one printable line. LocalError for none: whoever reads it must know what to do."""
    line = " ".join("".join(c if c.isprintable() else " " for c in why).split())
    if not line or len(line) > MAX_WHY_CHARS:
        raise LocalError(f"the reason has {len(line)} characters, 1 to {MAX_WHY_CHARS} are needed")
    return line


def _read(path: Path) -> _File:
    """A damaged file stops the hub: a notice that was lost must not read as one that never was."""
    try:
        return msgspec.json.decode(read_private(path, MAX_BYTES), type=_File)
    except msgspec.DecodeError as error:
        raise ExitError(Exit.DATABASE, f"{path} is damaged ({error}): restore it from a backup") from None
