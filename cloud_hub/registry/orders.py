"""Standing orders of administrators: deny notices to devices, and the minimum version of each policy.

Owns `orders.json`.

Rule: an order is on disk before it takes effect, only ever narrows, and is not revoked here: a notice ends for a
device that has a policy whose `clears_notice` reaches its counter, and a floor never sinks. Nothing a device says
changes either.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from policies.model.policy import CompiledLayer
from wire.errors import LocalError
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file, write_private_file
from wire.protocol.messages import DenyAllNotice
from wire.protocol.topics import extract_tenant, validate_device_id

ALL_DEVICES = ""
MAX_WHY_CHARS = 200
MAX_BYTES = 8 << 20


class DenyNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deny notice: nothing may leave a device. `scope`: a device's id, a tenant, or "" for all devices."""

    counter: int
    why: str
    scope: str
    issued_ms: int

    def to_message(self) -> DenyAllNotice:
        """The notice as the message that devices receive."""
        return DenyAllNotice(0, self.counter, self.why)

    def applies_to(self, device: str) -> bool:
        """Whether the notice covers this device."""
        return self.scope in (ALL_DEVICES, device, extract_tenant(device))


class SeenDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy document that this hub was given at some time, by title and version."""

    title: str
    version: int


class _OrdersFile(msgspec.Struct, forbid_unknown_fields=True):
    notices: tuple[DenyNotice, ...] = ()
    floors: dict[str, int] = {}
    seen: dict[str, SeenDocument] = {}


class Orders:
    """All standing orders of a hub; `path` None keeps them in memory, for tests and simulations."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._file = _read_orders(path) if path is not None and path.exists() else _OrdersFile()

    @property
    def notices(self) -> tuple[DenyNotice, ...]:
        """The newest notice of each scope."""
        return self._file.notices

    @property
    def floors(self) -> Mapping[str, int]:
        """Lowest version that is served, by `layer/name` of a policy."""
        return self._file.floors

    def notice_for(self, device: str) -> DenyNotice | None:
        """The newest notice that covers this device, or None."""
        met = [notice for notice in self._file.notices if notice.applies_to(device)]
        return max(met, key=lambda notice: notice.counter, default=None)

    def deny_all(self, scope: str, why: str, now_ms: int) -> DenyNotice:
        """Issue a deny notice, durable when it returns.

        Its counter is above all earlier ones, also those of other hubs.
        """
        counter = max((each.counter for each in self._file.notices), default=0) + 1
        notice = DenyNotice(max(counter, now_ms // 1000), clean_reason(why), check_scope(scope), now_ms)
        others = tuple(each for each in self._file.notices if each.scope != notice.scope)
        self._save_file(_OrdersFile((*others, notice), self._file.floors, self._file.seen))
        return notice

    def learn_documents(self, documents: Iterable[CompiledLayer]) -> None:
        """Raise the floor of each policy name to the oldest version served of it. Durable when it returns."""
        given = tuple(documents)
        seen = self._file.seen | {each.hash: SeenDocument(f"{each.layer}/{each.name}", each.version) for each in given}
        floors = dict(self._file.floors)
        for name in {seen[each.hash].title for each in given}:
            oldest = min(each.version for each in given if seen[each.hash].title == name)
            floors[name] = max(oldest, floors.get(name, 0))
        if (floors, seen) != (self._file.floors, self._file.seen):
            self._save_file(_OrdersFile(self._file.notices, floors, seen))

    def is_old(self, document: str) -> bool:
        """Whether the document with this hash is below its floor; False if this hub was never given it."""
        seen = self._file.seen.get(document)
        return seen is not None and seen.version < self._file.floors.get(seen.title, 0)

    def _save_file(self, file: _OrdersFile) -> None:
        if self._path is not None:
            write_private_file(self._path, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")
        self._file = file


def check_scope(scope: str) -> str:
    """Check a scope. LocalError if it is not a device id, a tenant or ""."""
    return validate_device_id(scope) if scope else ALL_DEVICES


def clean_reason(why: str) -> str:
    """Clean a reason to one printable line. LocalError if it is empty or too long: readers must know what to do."""
    line = " ".join("".join(c if c.isprintable() else " " for c in why).split())
    if not line or len(line) > MAX_WHY_CHARS:
        raise LocalError(f"the reason has {len(line)} characters, 1 to {MAX_WHY_CHARS} are needed")
    return line


def _read_orders(path: Path) -> _OrdersFile:
    """Read the orders file. A damaged file stops the hub, since a lost notice must not read as none."""
    try:
        return msgspec.json.decode(read_private_file(path, MAX_BYTES), type=_OrdersFile)
    except msgspec.DecodeError as error:
        raise ExitError(ExitCode.DATABASE, f"{path} is damaged ({error}): restore it from a backup") from None
