"""Idempotency-Keys: one computation per key and payload, of one hub in memory and of a region in its database."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import REGION
from cloud_hub.region.vault import RegionVault
from cloud_hub.serving.idempotency import (
    LIFE_S,
    MAX_KEYS,
    MAX_ROWS,
    KeyConflict,
    KeysUnavailableError,
    MemoryKeys,
    NewRequest,
    RequestKeys,
    RequestRunning,
    StoredAnswer,
)
from cloud_hub.serving.region_idempotency import RegionKeys, RequestTable
from tests.postgres import PostgresServer
from wire.protocol.messages import Prediction

ANSWER = (Prediction(1, 0.9, (0.1, 0.9), "digits@7"),)
OTHER = (Prediction(0, 0.8, (0.8, 0.2), "digits@7"),)
KEY = ("acme", "k1")


class Region:
    """The keys of a region, as its hubs see them; `sessions` are the processes that are alive."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = open_part(url, REGION)
        self.hubs: list[RegionKeys] = []
        self.runs: list[asyncio.Task[None]] = []

    def start(self, session: str, key: bytes = b"r" * 32) -> RegionKeys:
        self.execute(
            "insert into region.hubs values (:session, :session, 0, 1e15) "
            "on conflict (name) do update set seen_ms = 1e15",
            session=session,
        )
        hub = RegionKeys(RequestTable(self.url, session, RegionVault(key)))
        self.hubs.append(hub)
        self.runs.append(asyncio.create_task(hub.run()))
        return hub

    def end(self, session: str) -> None:
        """The process is not seen any more."""
        self.execute("update region.hubs set seen_ms = 0 where session = :session", session=session)

    def age(self) -> None:
        self.execute("update region.requests set until_ms = 0")

    def execute(self, text: str, **values: object) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(text), values)

    def rows(self) -> list[sa.Row[tuple[object, ...]]]:
        with self.engine.connect() as connection:
            return list(connection.execute(sa.text("select * from region.requests")).all())

    async def stop(self) -> None:
        for run in self.runs:
            run.cancel()
        await asyncio.wait(self.runs)
        self.engine.dispose()


@asynccontextmanager
async def open_region(postgres: PostgresServer) -> AsyncIterator[Region]:
    url = postgres.create_database()
    region = Region(url)
    yield region
    await asyncio.sleep(0)  # every task has begun
    await region.stop()
    postgres.drop_database(url)


@pytest.fixture
async def region(postgres: PostgresServer) -> AsyncIterator[Region]:
    async with open_region(postgres) as region:
        yield region


class Clock:
    now = 0.0


@pytest.fixture(params=["memory", pytest.param("region", marks=pytest.mark.postgres)])
async def keys(request: pytest.FixtureRequest) -> AsyncIterator[tuple[RequestKeys, Callable[[], None]]]:
    """Keys, and what makes all that is kept a day older."""
    if request.param == "memory":
        clock = Clock()

        def age() -> None:
            clock.now += LIFE_S

        yield MemoryKeys(lambda: clock.now), age
        return
    async with open_region(request.getfixturevalue("postgres")) as region:
        yield region.start("one"), region.age


async def test_a_second_request_waits_then_gets_the_first_ones_answer(keys):
    book, _ = keys
    assert await book.begin(KEY, b"a") == NewRequest()
    assert await book.begin(KEY, b"a") == RequestRunning()
    assert await book.finish(KEY, ANSWER) == StoredAnswer(ANSWER)
    assert await book.begin(KEY, b"a") == StoredAnswer(ANSWER)


async def test_another_payload_under_the_same_key_is_refused_while_it_runs_and_afterwards(keys):
    book, _ = keys
    await book.begin(KEY, b"a")
    assert await book.begin(KEY, b"b") == KeyConflict()
    await book.finish(KEY, ANSWER)
    assert await book.begin(KEY, b"b") == KeyConflict()


async def test_another_tenants_key_is_another_key(keys):
    book, _ = keys
    await book.begin(KEY, b"a")
    assert await book.begin(("umbrella", "k1"), b"b") == NewRequest()


async def test_what_failed_may_be_tried_again_with_anything(keys):
    book, _ = keys
    await book.begin(KEY, b"a")
    book.abandon(KEY)
    assert await book.begin(KEY, b"b") == NewRequest()
    assert await book.finish(KEY, ANSWER) == StoredAnswer(ANSWER)


async def test_an_answer_lives_a_day_and_a_running_request_as_long_as_it_runs(keys):
    book, age = keys
    await book.begin(KEY, b"a")
    age()
    assert await book.begin(KEY, b"a") == RequestRunning()
    await book.finish(KEY, ANSWER)
    assert await book.begin(KEY, b"a") == StoredAnswer(ANSWER)
    age()
    assert await book.begin(KEY, b"b") == NewRequest()


# In memory


async def test_the_oldest_answers_go_first_and_what_runs_stays():
    keys = MemoryKeys(lambda: 0.0)
    await keys.begin(("acme", "runs"), b"a")
    for number in range(MAX_KEYS + 10):
        name = ("acme", str(number))
        await keys.begin(name, b"a")
        await keys.finish(name, ANSWER)
    assert len(keys) <= MAX_KEYS
    assert await keys.begin(("acme", "runs"), b"a") == RequestRunning()
    assert await keys.begin(("acme", "0"), b"a") == NewRequest()
    big = ANSWER * (MAX_ROWS // 2)
    for number in range(4):
        await keys.begin(("big", str(number)), b"a")
        await keys.finish(("big", str(number)), big)
    assert keys.rows <= MAX_ROWS


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["begin", "finish", "abandon"]), st.booleans())))
def test_the_rows_that_are_counted_are_the_rows_that_are_kept(steps):
    async def take_steps() -> None:
        for name, step, late in steps:
            clock.now += LIFE_S if late else 1.0
            if step == "begin":
                await keys.begin(("t", name), b"a")
            elif step == "finish" and (known := keys._known.get(("t", name))) and known.answer is None:
                await keys.finish(("t", name), ANSWER)
            elif step == "abandon":
                keys.abandon(("t", name))

    clock = Clock()
    keys = MemoryKeys(lambda: clock.now)
    asyncio.run(take_steps())
    assert keys.rows == sum(len(known.answer or ()) for known in keys._known.values())


# Of a region


@pytest.mark.postgres
async def test_what_one_hub_computes_the_other_waits_for_and_answers_alike(region: Region):
    one, two = region.start("one"), region.start("two")
    assert await one.begin(KEY, b"a") == NewRequest()
    assert await two.begin(KEY, b"a") == RequestRunning()
    assert await two.begin(KEY, b"b") == KeyConflict()
    await one.finish(KEY, ANSWER)
    assert await two.begin(KEY, b"a") == StoredAnswer(ANSWER)
    assert await two.begin(KEY, b"b") == KeyConflict()


@pytest.mark.postgres
async def test_of_many_callers_at_two_hubs_one_is_computed(region: Region):
    hubs = [region.start("one"), region.start("two")]
    for number in range(20):
        name = ("acme", str(number))
        found = await asyncio.gather(*(hub.begin(name, b"a") for hub in hubs * 4))
        assert sorted(type(each).__name__ for each in found) == ["NewRequest"] + ["RequestRunning"] * 7


@pytest.mark.postgres
async def test_a_key_of_a_hub_that_is_gone_is_computed_by_the_other_and_has_one_answer(region: Region):
    one, two = region.start("one"), region.start("two")
    await one.begin(KEY, b"a")
    region.end("one")
    assert await two.begin(KEY, b"a") == NewRequest()
    assert await one.finish(KEY, OTHER) == RequestRunning()  # it was only stopped, and wakes
    await two.finish(KEY, ANSWER)
    region.start("one")
    assert await one.begin(KEY, b"a") == StoredAnswer(ANSWER)


@pytest.mark.postgres
async def test_a_caller_that_goes_while_its_key_is_being_claimed_leaves_it_free(region: Region):
    one, two = region.start("one"), region.start("two")
    for _ in range(10):
        asking = asyncio.create_task(one.begin(KEY, b"a"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(60):
            while not isinstance(await two.begin(KEY, b"b"), NewRequest):
                await asyncio.sleep(0.01)
        two.abandon(KEY)
        async with asyncio.timeout(60):
            while region.rows():
                await asyncio.sleep(0.01)


@pytest.mark.postgres
async def test_a_row_tells_nobody_without_the_key_whose_it_is_or_what_was_answered(region: Region):
    one, stranger = region.start("one"), region.start("two", b"s" * 32)
    await one.begin(("acme", "order-17"), b"payload")
    await one.finish(("acme", "order-17"), ANSWER)
    (row,) = region.rows()
    assert not [text for text in (b"acme", b"order-17", b"payload", b"digits@7") if text in repr(row).encode()]
    assert await stranger.begin(("acme", "order-17"), b"payload") == NewRequest()
    region.execute("update region.requests set answer = :wrong where answer is not null", wrong=b"x" * 64)
    with pytest.raises(KeysUnavailableError):
        await one.begin(("acme", "order-17"), b"payload")


@pytest.mark.postgres
async def test_what_is_old_goes_and_of_too_much_the_oldest(region: Region):
    one = region.start("one")
    for number in range(5):
        await one.begin(("acme", str(number)), b"a")
        if number:
            await one.finish(("acme", str(number)), ANSWER)
    table = one._table
    table.sweep(most=2)
    found = [await one.begin(("acme", str(number)), b"a") for number in (0, 3, 4)]
    assert found == [RequestRunning(), StoredAnswer(ANSWER), StoredAnswer(ANSWER)]
    region.age()
    table.sweep()
    assert len(region.rows()) == 1, "what is computed stays"


@pytest.mark.postgres
async def test_while_the_database_is_away_nobody_is_told_that_a_request_is_new(region: Region):
    one = region.start("one")
    await one.begin(KEY, b"a")
    region.execute("alter table region.requests rename to elsewhere")
    with pytest.raises(KeysUnavailableError):
        await one.begin(("acme", "k2"), b"a")
    with pytest.raises(KeysUnavailableError):
        await one.finish(KEY, ANSWER)
    region.execute("alter table region.elsewhere rename to requests")
    assert await one.begin(KEY, b"a") == NewRequest()
