"""A hub's place among those of its region: its name, held by one session of the database, and which hubs are alive.

Rule: a name has one holder. The server itself ends the hold of a process that is gone, so a hub that was killed may be
started again at once. Rule: every time here is by the server's clock; a hub whose own is wrong is as alive as others.
"""

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from cloud_hub.database.connection import open_part
from cloud_hub.database.errors import describe_url, explain_error
from cloud_hub.database.parts import REGION
from cloud_hub.database.server import list_connection_options
from cloud_hub.database.statements import hold_for_session
from cloud_hub.database.tables import hubs
from wire.process.exit_codes import ExitCode, ExitError

BEAT_S = 1.0
ALIVE_MS = 6000  # a hub that was not seen for longer is taken for dead
_TAKE_S = 3.0  # a server needs a moment to notice that a killed process is gone
_RETRY_S = 0.2
# So that the server ends the session of a machine that is gone without a word.
_NOTICE_DEATH = "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3"
_NOW_MS = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()) * 1000, sa.BigInteger)


class LiveHub(msgspec.Struct, frozen=True):
    """A hub that is alive. Times in ms since 1970, by the server's clock."""

    name: str
    session: str
    since_ms: int
    seen_ms: int


class RegionView(msgspec.Struct, frozen=True):
    """What one look at the database showed. `now_ms`: the server's clock; `hubs`: who is alive, by name."""

    now_ms: int = 0
    hubs: tuple[LiveHub, ...] = ()


class HubSession:
    """The one connection that holds a hub's name; used by one thread at a time."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.id = secrets.token_hex(8)
        self._url = url
        options = list_connection_options(url)
        if "options" in options:
            options["options"] += f" {_NOTICE_DEATH}"
        self._engine = sa.create_engine(
            url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT", hide_parameters=True, connect_args=options
        )
        self._connection: sa.Connection | None = None

    def take_name(self) -> None:
        """Connect and take the name. ExitError(NAME_TAKEN) if another hub holds it; else as `explain_error` says."""
        open_part(self._url, REGION).dispose()
        deadline = time.monotonic() + _TAKE_S
        try:
            while not self.connect():
                if time.monotonic() > deadline:
                    raise refuse_name(self.name, self._url)
                time.sleep(_RETRY_S)
        except sa.exc.DBAPIError as error:
            raise explain_error(error, self._url) from None

    def connect(self) -> bool:
        """Connect, unless connected; whether the name is ours."""
        if self._connection is not None:
            return True
        connection = self._engine.connect()
        if not hold_for_session(connection, f"hub {self.name}"):
            connection.close()
            return False
        self._connection = connection
        return True

    def look(self) -> RegionView:
        """Say that this hub is there, and see who else is. SQLAlchemyError if the server cannot be asked."""
        if self._connection is None:
            raise sa.exc.InvalidRequestError("not connected")
        self._connection.execute(self._announcement())
        alive = hubs.c.seen_ms > _NOW_MS - ALIVE_MS
        found = self._connection.execute(sa.select(_NOW_MS.label("now_ms"), *hubs.c).where(alive).order_by(hubs.c.name))
        rows = [dict(row) for row in found.mappings()]
        return RegionView(rows[0].pop("now_ms"), tuple(LiveHub(**_without_now(row)) for row in rows))

    def find_holder(self) -> str:
        """Session that was last seen under this name. SQLAlchemyError if the server cannot be asked."""
        with self._engine.connect() as connection:
            return str(connection.execute(sa.select(hubs.c.session).where(hubs.c.name == self.name)).scalar() or "")

    def disconnect(self) -> None:
        """Close the connection, if there is one; the name is free from then on."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()

    def leave(self) -> None:
        """Say that this hub is gone, and give its name back."""
        if self._connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):  # it is taken for dead after `ALIVE_MS`
                self._connection.execute(hubs.delete().where(hubs.c.name == self.name, hubs.c.session == self.id))
        self.disconnect()
        self._engine.dispose()

    def _announcement(self) -> Any:
        insert = postgresql.insert(hubs).values(name=self.name, session=self.id, since_ms=_NOW_MS, seen_ms=_NOW_MS)
        new = insert.excluded
        since = sa.case((hubs.c.session == new.session, hubs.c.since_ms), else_=new.since_ms)
        return insert.on_conflict_do_update(
            index_elements=[hubs.c.name], set_={"session": new.session, "since_ms": since, "seen_ms": new.seen_ms}
        )


def _without_now(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "now_ms"}


def refuse_name(name: str, url: str) -> ExitError:
    """Exit error of a hub whose name another one of the region has."""
    return ExitError(
        ExitCode.NAME_TAKEN,
        f"another hub of {describe_url(url)} runs as {name!r}: stop it, or give this one a [hub] member of its own",
    )


class RegionMembership:
    """Holds a hub's name from a thread of its own, which looks at the database once a second.

    `view`: what the last look showed. `run` watches it from the event loop.
    """

    def __init__(self, session: HubSession, url: str) -> None:
        self.view = session.look()
        self.looked_s = time.monotonic()  # when that look began
        self._session = session
        self._url = url
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run_thread, name="hub-region", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, url: str, name: str) -> Self:
        """Take a name. ExitError(NAME_TAKEN) if another hub has it; else as `explain_error` says."""
        session = HubSession(url, name)
        try:
            session.take_name()
            return cls(session, url)
        except sa.exc.DBAPIError as error:
            session.leave()
            raise explain_error(error, url) from None
        except ExitError:
            session.leave()
            raise

    @property
    def name(self) -> str:
        """Name of the hub that holds this place."""
        return self._session.name

    def close(self) -> None:
        """Give the name back."""
        self._stop.set()
        self._thread.join()
        self._session.leave()

    async def run(self) -> None:
        """Wait until another hub has taken the name, while the server could not be reached. ExitError(NAME_TAKEN)."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(changed.set)
        try:
            while not self._lost.is_set():
                await changed.wait()
                changed.clear()
        finally:
            self._wake = lambda: None
        raise refuse_name(self.name, self._url)

    def _run_thread(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                self._look()
            except sa.exc.SQLAlchemyError:
                self._session.disconnect()
            if self._lost.is_set():
                return

    def _look(self) -> None:
        began_s = time.monotonic()
        if self._session.connect():
            self.view, self.looked_s = self._session.look(), began_s
        elif self._session.find_holder() != self._session.id:  # else the server has not noticed our own end yet
            self._lost.set()
            self._wake()
