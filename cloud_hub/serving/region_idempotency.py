"""Idempotency-Keys of hubs that share a PostgreSQL database: whichever hub is asked, a request is computed once.

Rule: a key and its answer are one row, which is committed before anybody gets the answer. Rule: while a request is
computed its key is claimed by one process, for as long as that is alive by the server's clock (`region.hubs`); a hub
that was stopped meanwhile finds its claim taken, and gives its caller what the other one has stored.
Rule: the row names neither tenant nor key, and holds no answer in the clear: all is under `region.key`.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
import sqlalchemy as sa

from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import REGION
from cloud_hub.database.server import list_connection_options, on_server_connect
from cloud_hub.database.tables import requests
from cloud_hub.region.releases import ALIVE_MS
from cloud_hub.region.vault import RegionVault, WrongRegionKeyError
from cloud_hub.serving.idempotency import (
    LIFE_S,
    KeyConflict,
    KeyStatus,
    KeysUnavailableError,
    NewRequest,
    RequestKey,
    RequestRunning,
    StoredAnswer,
)
from wire.protocol.messages import Prediction

THREADS = 4  # so many keys are written at once, in one commit of the server or few
MAX_WAITING = 256  # keys that wait for a thread; more callers are told to come again
MAX_STORED = 100_000
MAX_STORED_BYTES = 256 << 20
SWEEP_S = 60.0
_TRIES = 3
_NOW = "cast(extract(epoch from clock_timestamp()) * 1000 as bigint)"
_DEAD = f"not exists (select 1 from region.hubs h where h.session = r.session and h.seen_ms > {_NOW} - {ALIVE_MS})"  # noqa: S608 - constants of this file
# What this process claims, or claimed and is not computing any more; or what nobody computes; or an answer of long ago.
_CLAIM = sa.text(
    f"""insert into region.requests as r (digest, fingerprint, session, claim, until_ms)
    values (:digest, :fingerprint, :session, :claim, {_NOW} + :life)
    on conflict (digest) do update set fingerprint = excluded.fingerprint, session = excluded.session,
      claim = excluded.claim, until_ms = excluded.until_ms, answer = null, size = 0
    where (r.answer is not null and r.until_ms <= {_NOW})
      or (r.answer is null and (r.session = excluded.session or {_DEAD}))
    returning 1"""  # noqa: S608 - constants of this file
)
_FINISH = sa.text(
    f"""update region.requests set answer = :answer, size = :size, until_ms = {_NOW} + :life
    where digest = :digest and session = :session and claim = :claim and answer is null"""  # noqa: S608 - as above
)
_ABANDON = sa.text(
    "delete from region.requests where digest = :digest and session = :session and claim = :claim and answer is null"
)
_DELETE_OLD = sa.text(
    f"delete from region.requests r where r.until_ms <= {_NOW} and (r.answer is not null or {_DEAD})"  # noqa: S608 - as above
)
_DELETE_MANY = sa.text(
    """delete from region.requests where digest in (
      select digest from (
        select digest, row_number() over newest as place, sum(size) over newest as bytes from region.requests
        where answer is not null window newest as (order by until_ms desc, digest)
      ) as ranked where place > :most or bytes > :most_bytes
    )"""
)
P = ParamSpec("P")
T = TypeVar("T")
_decode_answer = msgspec.msgpack.Decoder(tuple[Prediction, ...]).decode


class _Claim(NamedTuple):
    """A request that this process computes, as the table names it."""

    digest: bytes
    fingerprint: bytes
    number: int


class RequestTable:
    """The rows of the keys. Every method may be called by any thread, and raises SQLAlchemyError.

    `session`: of the process, as `region.hubs` has it.
    """

    def __init__(self, url: str, session: str, vault: RegionVault) -> None:
        open_part(url, REGION).dispose()
        self._session = session
        self._vault = vault
        self._engine = sa.create_engine(
            url,
            pool_size=THREADS,
            max_overflow=0,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args=list_connection_options(url),
        )
        sa.event.listen(self._engine, "connect", on_server_connect)

    def close(self) -> None:
        self._engine.dispose()

    def name_claim(self, name: RequestKey, fingerprint: bytes, number: int) -> _Claim:
        """Name a claim as the rows do: by keyed digests."""
        digest = self._vault.digest("request", "\0".join(name).encode())
        return _Claim(digest, self._vault.digest("request payload", fingerprint), number)

    def begin(self, claim: _Claim) -> KeyStatus:
        """Claim a key, or say what is known of it."""
        asked = {**self._values(claim), "fingerprint": claim.fingerprint, "life": int(LIFE_S * 1000)}
        for _ in range(_TRIES):
            with self._engine.begin() as connection:
                # A claim that a server forgets in a power cut is one that nobody has.
                connection.exec_driver_sql("set local synchronous_commit = off")
                if connection.execute(_CLAIM, asked).first():
                    return NewRequest()
                found = self._read(connection, claim)
            if found is not None:  # else it was abandoned between both statements
                return found
        return RequestRunning()

    def finish(self, claim: _Claim, predictions: tuple[Prediction, ...]) -> KeyStatus:
        """Store the answer of a claim, durable on return; or say what another process has made of the key."""
        answer = self._vault.seal(_name_answer(claim), msgspec.msgpack.encode(predictions))
        values = {**self._values(claim), "answer": answer, "size": len(answer), "life": int(LIFE_S * 1000)}
        with self._engine.begin() as connection:
            if connection.execute(_FINISH, values).rowcount:
                return StoredAnswer(predictions)
            return self._read(connection, claim) or RequestRunning()

    def abandon(self, claim: _Claim) -> None:
        """Free the key of a claim, unless it is answered or another process's."""
        with self._engine.begin() as connection:
            connection.execute(_ABANDON, self._values(claim))

    def sweep(self, most: int = MAX_STORED, most_bytes: int = MAX_STORED_BYTES) -> None:
        """Delete what is old, and of the answers the oldest that are too many or too large."""
        with self._engine.begin() as connection:
            connection.execute(_DELETE_OLD)
            connection.execute(_DELETE_MANY, {"most": most, "most_bytes": most_bytes})

    def _values(self, claim: _Claim) -> dict[str, Any]:
        return {"digest": claim.digest, "session": self._session, "claim": claim.number}

    def _read(self, connection: sa.Connection, claim: _Claim) -> KeyStatus | None:
        query = sa.select(requests.c.fingerprint, requests.c.answer).where(requests.c.digest == claim.digest)
        row = connection.execute(query).first()
        if row is None:
            return None
        if bytes(row.fingerprint) != claim.fingerprint:
            return KeyConflict()
        if row.answer is None:
            return RequestRunning()
        return StoredAnswer(_decode_answer(self._vault.unseal(_name_answer(claim), bytes(row.answer))))


class RegionKeys:
    """The keys of a region, as one of its hubs asks for them: from its event loop, on threads beside it."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hub-request-keys")
        self._waiting = 0
        self._numbers = itertools.count(1)
        self._running: dict[RequestKey, _Claim] = {}
        self._unfreed: set[_Claim] = set()  # since the database could not be asked

    async def begin(self, name: RequestKey, fingerprint: bytes) -> KeyStatus:
        """Register a request under its key, or say what is known of it."""
        claim = self._table.name_claim(name, fingerprint, next(self._numbers))
        known = self._running.get(name)
        if known is not None:
            return RequestRunning() if known.fingerprint == claim.fingerprint else KeyConflict()
        if self._waiting >= MAX_WAITING:
            raise KeysUnavailableError
        self._running[name] = claim
        asking = self._submit(self._table.begin, claim)
        try:
            status = await self._wait(asking)
        except (KeysUnavailableError, asyncio.CancelledError):
            asking.add_done_callback(lambda _: self.abandon(name))  # it may have been claimed, or be so soon
            raise
        if not isinstance(status, NewRequest):
            del self._running[name]
        return status

    async def finish(self, name: RequestKey, predictions: tuple[Prediction, ...]) -> KeyStatus:
        """Keep the answer of a request for `LIFE_S`; returns the one that is kept."""
        claim = self._running[name]
        try:
            return await self._wait(self._submit(self._table.finish, claim, predictions))
        except KeysUnavailableError:
            self._free(claim)
            raise
        finally:
            del self._running[name]

    def abandon(self, name: RequestKey) -> None:
        """Free the key: the request failed."""
        self._free(self._running.pop(name))

    async def run(self) -> None:
        """Forget what is old, and free what could not be freed, until cancelled."""
        try:
            while True:
                await asyncio.sleep(SWEEP_S)
                again, self._unfreed = self._unfreed, set()
                for claim in again:
                    self._free(claim)
                with contextlib.suppress(KeysUnavailableError):
                    await self._wait(self._submit(self._table.sweep))
        finally:
            self._threads.shutdown()
            self._table.close()

    def _submit(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> "Future[T]":
        """Give work to the threads. KeysUnavailableError once the hub stops."""
        try:
            return self._threads.submit(work, *arguments, **options)
        except RuntimeError:
            raise KeysUnavailableError from None

    async def _wait(self, asked: "Future[T]") -> T:
        """Wait for what the table says. KeysUnavailableError if it cannot be asked."""
        self._waiting += 1
        try:
            return await asyncio.wrap_future(asked)
        except (sa.exc.SQLAlchemyError, WrongRegionKeyError):
            raise KeysUnavailableError from None
        finally:
            self._waiting -= 1

    def _free(self, claim: _Claim) -> None:
        def note(done: "Future[None]") -> None:
            if done.cancelled() or done.exception() is not None:
                self._unfreed.add(claim)

        with contextlib.suppress(KeysUnavailableError):  # the hub stops: then its claims are nobody's
            self._submit(self._table.abandon, claim).add_done_callback(note)


def _name_answer(claim: _Claim) -> str:
    return f"request {claim.digest.hex()}"
