"""A hub's place among those of its region: its name, held by one session, that it is there, and what others change.

Rule: a name has one holder. The server itself ends the hold of a process that is gone, so a hub that was killed may be
started again at once. Rule: every time here is by the server's clock; a hub whose own is wrong is as alive as others.
"""

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from cloud_hub.database.changes import CHANNEL, Topic, read_revisions, read_subjects
from cloud_hub.database.connection import open_part
from cloud_hub.database.errors import describe_url, explain_error
from cloud_hub.database.parts import REGION
from cloud_hub.database.server import list_connection_options
from cloud_hub.database.statements import hold_for_session
from cloud_hub.database.tables import hubs
from cloud_hub.region.clock import RegionClock
from cloud_hub.region.news import NewsState, StaleTopic
from cloud_hub.region.releases import SERVED_JSON
from wire.process.exit_codes import ExitCode, ExitError

BEAT_S = 1.0
_TAKE_S = 3.0  # a server needs a moment to notice that a killed process is gone
_RETRY_S = 0.2
_SLICE_S = 0.2  # of waiting for a hint, so that `close` is not kept waiting
_HINTS_APART_S = 0.02
# So that the server ends the session of a machine that is gone without a word.
_NOTICE_DEATH = "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3"
_NOW_MS = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()) * 1000, sa.BigInteger)


class RegionView(msgspec.Struct, frozen=True):
    """What one look at the database showed.

    `now_ms`: the server's clock; `revisions`: of each topic that was ever changed.
    """

    now_ms: int
    revisions: Mapping[Topic, int]


@dataclass(frozen=True)
class NewsReader:
    """How one topic's changes are taken in.

    `read` gets the changed subjects, None = all, on a thread; `apply` gets what it returned, and the revision that this
    is as of, on the event loop.
    """

    topic: Topic
    read: Callable[[sa.Connection, Collection[str] | None], Any]
    apply: Callable[[Any, int], None]


class HubSession:
    """The one connection that holds a hub's name; used by one thread at a time."""

    def __init__(self, url: str, name: str, release: str = "") -> None:
        self.name = name
        self._release = release
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
        connection.exec_driver_sql(f"listen {CHANNEL}")
        self._connection = connection
        return True

    def look(self) -> RegionView:
        """Say that this hub is there, and see what changed. SQLAlchemyError if the server cannot be asked."""
        if self._connection is None:
            raise sa.exc.InvalidRequestError("not connected")
        now_ms = int(self._connection.execute(self._announcement()).scalar_one())
        return RegionView(now_ms, read_revisions(self._connection))

    def hear(self, wait_s: float) -> bool:
        """Wait for a hint that something changed; whether one came. SQLAlchemyError if the connection is lost."""
        if self._connection is None:
            time.sleep(wait_s)
            return False
        driver: Any = self._connection.connection.driver_connection
        try:
            return any(True for _ in driver.notifies(timeout=wait_s, stop_after=1))
        except driver.Error as error:
            raise sa.exc.DBAPIError(None, None, error) from None

    def read_news(self, reader: NewsReader, stale: StaleTopic) -> Any:
        """Read what changed of a topic. SQLAlchemyError if the server cannot be asked."""
        if self._connection is None:
            raise sa.exc.InvalidRequestError("not connected")
        return reader.read(self._connection, read_subjects(self._connection, stale.topic, stale.after))

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
            with contextlib.suppress(sa.exc.SQLAlchemyError):  # it is taken for dead after `releases.ALIVE_MS`
                self._connection.execute(hubs.delete().where(hubs.c.name == self.name, hubs.c.session == self.id))
        self.disconnect()
        self._engine.dispose()

    def _announcement(self) -> Any:
        mine = {"session": self.id, "stated": self.id, "release": self._release, "serves": SERVED_JSON}
        insert = postgresql.insert(hubs).values(name=self.name, since_ms=_NOW_MS, seen_ms=_NOW_MS, **mine)
        new = insert.excluded
        since = sa.case((hubs.c.session == new.session, hubs.c.since_ms), else_=new.since_ms)
        said = insert.on_conflict_do_update(
            index_elements=[hubs.c.name], set_={**mine, "since_ms": since, "seen_ms": new.seen_ms}
        )
        return said.returning(hubs.c.seen_ms)


def refuse_name(name: str, url: str) -> ExitError:
    """Exit error of a hub whose name another one of the region has."""
    return ExitError(
        ExitCode.NAME_TAKEN,
        f"another hub of {describe_url(url)} runs as {name!r}: stop it, or give this one a [hub] member of its own",
    )


class RegionMembership:
    """Holds a hub's name from a thread of its own, which looks at the database once a second, and when it gets a hint.

    `view`: what the last look showed; `clock`: the server's. `run` serves on the event loop; what changes before is
    taken in then.
    """

    def __init__(self, session: HubSession, url: str) -> None:
        self.clock = RegionClock()
        began_s = time.monotonic()
        self.view = session.look()
        self.clock.follow(self.view.now_ms / 1000, began_s)
        self._news = NewsState(self.view.revisions)  # what is opened after this is at least as new
        self._follower: _NewsFollower | None = None
        self._session = session
        self._url = url
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run_thread, name="hub-region", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, url: str, name: str, release: str = "") -> Self:
        """Take a name, for a program of this release.

        ExitError(NAME_TAKEN) if another hub has it; else as `explain_error` says.
        """
        session = HubSession(url, name, release)
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

    @property
    def session(self) -> str:
        """The session that holds it, drawn by this process."""
        return self._session.id

    def close(self) -> None:
        """Give the name back."""
        self._stop.set()
        self._thread.join()
        self._session.leave()

    async def run(self, readers: Sequence[NewsReader], on_caught_up: Callable[[float], None]) -> None:
        """Take in what others change; `on_caught_up` gets how many seconds ago all of it was known.

        ExitError(NAME_TAKEN) once another hub has taken the name, while the server could not be reached.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        follower = _NewsFollower(self._news, tuple(readers), on_caught_up)
        self._wake = lambda: loop.call_soon_threadsafe(_finish, ended)
        follower.post = loop.call_soon_threadsafe
        self._follower = follower
        try:
            if not self._lost.is_set():
                await ended
        finally:
            self._follower = None
            self._wake = lambda: None
        raise refuse_name(self.name, self._url)

    def _run_thread(self) -> None:
        while self._wait_for_hint() and not self._lost.is_set():
            try:
                self._look()
            except sa.exc.SQLAlchemyError:
                self._session.disconnect()

    def _wait_for_hint(self) -> bool:
        """Wait until it is time to look again; False if there is nothing more to do."""
        due_s = time.monotonic() + BEAT_S
        while time.monotonic() < due_s and not self._stop.wait(_HINTS_APART_S):
            try:
                if self._session.hear(_SLICE_S):
                    break
            except sa.exc.SQLAlchemyError:
                self._session.disconnect()
        return not self._stop.is_set()

    def _look(self) -> None:
        began_s = time.monotonic()
        if self._session.connect():
            asked_s = time.monotonic()
            self.view, follower = self._session.look(), self._follower
            self.clock.follow(self.view.now_ms / 1000, asked_s)
            if follower is not None:
                follower.follow(self._session, self.view.revisions, began_s)
        elif self._session.find_holder() != self._session.id:  # else the server has not noticed our own end yet
            self._lost.set()
            self._wake()


class _NewsFollower:
    """Reads changes on the membership's thread, and has them taken in on the event loop."""

    def __init__(
        self, state: NewsState, readers: tuple[NewsReader, ...], on_caught_up: Callable[[float], None]
    ) -> None:
        self.post: Callable[..., object] = lambda *_: None
        self._state = state
        self._readers = {reader.topic: reader for reader in readers}
        self._on_caught_up = on_caught_up
        self._failed = threading.Event()

    def follow(self, session: HubSession, revisions: Mapping[Topic, int], began_s: float) -> None:
        """Read what changed, and hand it to the event loop. SQLAlchemyError if the server cannot be asked."""
        if self._failed.is_set():
            self._failed.clear()
            self._state = self._state.forget()
        stale = self._state.find_stale(revisions)
        found = [(each, session.read_news(self._readers[each.topic], each)) for each in stale]
        self._state = self._state.take_in(stale)
        with contextlib.suppress(RuntimeError):  # the event loop was closed: nobody wants to know any more
            self.post(self._apply, found, began_s)

    def _apply(self, found: list[tuple[StaleTopic, Any]], began_s: float) -> None:
        """Take in what was read. If that fails, everything is read again, and the hub has not caught up until then."""
        if self._failed.is_set():
            return
        complete = False
        try:
            for stale, data in found:
                self._readers[stale.topic].apply(data, stale.revision)
            complete = True
        finally:
            if not complete:
                self._failed.set()
        self._on_caught_up(time.monotonic() - began_s)


def _finish(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
