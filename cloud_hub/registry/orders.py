"""Standing orders of administrators: deny notices to devices, and the minimum version of each policy.

Rule: an order is stored before it takes effect, only ever narrows, and is not revoked here: a notice ends for a
device that has a policy whose `clears_notice` reaches its counter, and a floor never sinks. Nothing a device says
changes either.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from policies.model.policy import CompiledLayer
from wire.errors import LocalError
from wire.protocol.messages import DenyAllNotice
from wire.protocol.topics import extract_tenant, validate_device_id

ALL_DEVICES = ""
MAX_WHY_CHARS = 200


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


class OrdersState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest notice of each scope, by counter; the floor of each policy name; the documents seen, by hash."""

    notices: tuple[DenyNotice, ...] = ()
    floors: dict[str, int] = {}
    seen: dict[str, SeenDocument] = {}


class OrdersBackend(Protocol):
    """Where orders are stored: durable once a method returns, and never lowered by another hub."""

    def write_notice(self, notice: DenyNotice) -> DenyNotice:
        """Store a notice in place of its scope's; its counter is raised above all that are stored."""
        ...

    def write_documents(self, seen: Mapping[str, SeenDocument], floors: Mapping[str, int]) -> None:
        """Store documents by hash and floors by policy name."""
        ...


class Orders:
    """All standing orders of a hub; without a `backend` they are kept in memory, for tests and simulations."""

    def __init__(self, backend: OrdersBackend | None = None, state: OrdersState | None = None) -> None:
        self._backend = backend
        self._state = state or OrdersState()

    @property
    def notices(self) -> tuple[DenyNotice, ...]:
        """The newest notice of each scope."""
        return self._state.notices

    @property
    def floors(self) -> Mapping[str, int]:
        """Lowest version that is served, by `layer/name` of a policy."""
        return self._state.floors

    def notice_for(self, device: str) -> DenyNotice | None:
        """The newest notice that covers this device, or None."""
        met = [notice for notice in self._state.notices if notice.applies_to(device)]
        return max(met, key=lambda notice: notice.counter, default=None)

    def deny_all(self, scope: str, why: str, now_ms: int) -> DenyNotice:
        """Issue a deny notice and obey it; durable when it returns."""
        notice = self.issue_notice(scope, why, now_ms)
        self.take_news(OrdersState((notice,)))
        return notice

    def issue_notice(self, scope: str, why: str, now_ms: int) -> DenyNotice:
        """Store a deny notice, durable when it returns; it is obeyed once it is taken in.

        Its counter is above all earlier ones, also those of other hubs.
        """
        counter = max((each.counter for each in self._state.notices), default=0) + 1
        notice = DenyNotice(max(counter, now_ms // 1000), clean_reason(why), check_scope(scope), now_ms)
        if self._backend is not None:
            notice = self._backend.write_notice(notice)
        return notice

    def learn_documents(self, documents: Iterable[CompiledLayer]) -> None:
        """Raise the floor of each policy name to the oldest version served of it. Durable when it returns."""
        self.take_news(self.store_documents(documents))

    def store_documents(self, documents: Iterable[CompiledLayer]) -> OrdersState:
        """Store documents and the floors that follow from serving them; they count once they are taken in."""
        given = tuple(documents)
        seen = self._state.seen | {each.hash: SeenDocument(f"{each.layer}/{each.name}", each.version) for each in given}
        floors = dict(self._state.floors)
        for name in {seen[each.hash].title for each in given}:
            oldest = min(each.version for each in given if seen[each.hash].title == name)
            floors[name] = max(oldest, floors.get(name, 0))
        if self._backend is not None and (floors, seen) != (self._state.floors, self._state.seen):
            self._backend.write_documents(seen, floors)
        return OrdersState((), floors, seen)

    def take_news(self, state: OrdersState) -> None:
        """Take in orders as they are stored. Nothing sinks: of two notices of a scope the higher counter stays."""
        notices = {each.scope: each for each in (*self._state.notices, *state.notices)}
        for each in self._state.notices:
            if each.counter > notices[each.scope].counter:
                notices[each.scope] = each
        titles = self._state.floors.keys() | state.floors.keys()
        floors = {title: max(self._state.floors.get(title, 0), state.floors.get(title, 0)) for title in titles}
        self._state = OrdersState(tuple(notices.values()), floors, self._state.seen | state.seen)

    def is_old(self, document: str) -> bool:
        """Whether the document with this hash is below its floor; False if this hub was never given it."""
        seen = self._state.seen.get(document)
        return seen is not None and seen.version < self._state.floors.get(seen.title, 0)


def check_scope(scope: str) -> str:
    """Check a scope. LocalError if it is not a device id, a tenant or ""."""
    return validate_device_id(scope) if scope else ALL_DEVICES


def clean_reason(why: str) -> str:
    """Clean a reason to one printable line. LocalError if it is empty or too long: readers must know what to do."""
    line = " ".join("".join(c if c.isprintable() else " " for c in why).split())
    if not line or len(line) > MAX_WHY_CHARS:
        raise LocalError(f"the reason has {len(line)} characters, 1 to {MAX_WHY_CHARS} are needed")
    return line
