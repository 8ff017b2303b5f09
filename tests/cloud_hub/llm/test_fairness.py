"""However ten hostile tenants fill, flood and leave the queue of a model, an honest one is let in within its share."""

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.replica import Replica
from cloud_hub.llm.settings import LlmSettings, ReplicaAddress
from cloud_hub.llm.token_queue import QueueTicket, TokenQueue

HOSTILE = 10
HONEST_TOKENS = 200
STEPS = st.lists(
    st.tuples(st.integers(0, HOSTILE - 1), st.integers(1, 60_000), st.floats(0.0, 2.0), st.booleans()),
    min_size=1,
    max_size=60,
)


class Clock:
    """Virtual time in seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def read(self) -> float:
        return self.now_s


class Crowd:
    """A queue whose engines have no room, and the requests that wait in it."""

    def __init__(self) -> None:
        self.clock = Clock()
        told = LlmSettings(name="m", tenant_tokens_per_s=50_000.0, tenant_burst_tokens=100_000.0, max_wait_s=3600.0)
        self.queue = TokenQueue(told, lambda ticket: None, lambda: 4, self.clock.read)
        self._waiting: list[asyncio.Task[None]] = []

    async def ask(self, tenant: str, tokens: int) -> int:
        """Ask and wait in the queue; the status of the refusal, 0 = let in."""
        refused: list[int] = []

        async def wait() -> None:
            try:
                async with self.queue.turn(QueueTicket(tenant, "", tokens, None)):
                    return
            except LlmError as error:
                refused.append(error.status)

        self._waiting.append(asyncio.create_task(wait()))
        await asyncio.sleep(0)
        return refused[0] if refused else 0

    async def hang_up(self) -> None:
        """The first that waits goes."""
        if self._waiting:
            await self._end(self._waiting[:1])
            self._waiting = self._waiting[1:]

    async def close(self) -> None:
        await self._end(self._waiting)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def play(steps: list[tuple[int, int, float, bool]], *, hostile: bool) -> list[int]:
    """Return what the honest tenant met at each step, beside the hostile ones or alone at the same times."""
    crowd, met = Crowd(), []
    for number, tokens, pause_s, leaves in steps:
        crowd.clock.now_s += pause_s
        if hostile:
            for _ in range(5):
                await crowd.ask(f"hostile-{number}", tokens)
            if leaves:
                await crowd.hang_up()
        met.append(await crowd.ask("honest", HONEST_TOKENS))
    await crowd.close()
    return met


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_an_honest_tenant_is_refused_beside_ten_hostile_ones_as_often_as_alone(steps):
    alone = asyncio.run(play(steps, hostile=False))
    beside = asyncio.run(play(steps, hostile=True))
    assert beside == alone


# -- places of an engine

PLACES, PLACED_TOKENS = 22, 100_000
MAX_WAIT_S = 3600.0
STEP_S, WORK_S = 0.5, 0.4
HOLDS = st.lists(
    st.lists(
        st.tuples(st.integers(0, HOSTILE - 1), st.integers(1, 90_000), st.floats(0.0, 300.0), st.integers(1, 4)),
        max_size=3,
    ),
    min_size=1,
    max_size=15,
)


class Engine:
    """A queue before an engine with room, in virtual time; each request is computed until its own end."""

    def __init__(self) -> None:
        self.clock = Clock()
        told = LlmSettings(
            name="m",
            max_running=PLACES,
            max_running_tokens=PLACED_TOKENS,
            max_wait_s=MAX_WAIT_S,
            max_queued_tokens=1 << 40,
        )
        self.replica = Replica(ReplicaAddress("http://engine"), told)
        self.queue = TokenQueue(told, self._find, lambda: 1, self.clock.read)
        self._ends: list[tuple[float, asyncio.Event]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def _find(self, ticket: QueueTicket) -> Replica | None:
        return self.replica if self.replica.has_room(ticket.placed) else None

    async def ask(self, tenant: str, tokens: int, work_s: float) -> asyncio.Event:
        """Ask; returns what is set once the request is begun."""
        begun, ended = asyncio.Event(), asyncio.Event()

        async def compute() -> None:
            with contextlib.suppress(LlmError):
                async with self.queue.turn(QueueTicket(tenant, "", tokens, None)):
                    begun.set()
                    self._ends.append((self.clock.now_s + work_s, ended))
                    await ended.wait()

        self._tasks.append(asyncio.create_task(compute()))
        await self._settle()
        return begun

    async def pass_time(self, step_s: float) -> None:
        self.clock.now_s += step_s
        for due_s, ended in self._ends:
            if due_s <= self.clock.now_s:
                ended.set()
        self._ends = [each for each in self._ends if each[0] > self.clock.now_s]
        await self._settle()
        self.queue.dispatch()  # as after each check of a replica
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def hold(steps: list[list[tuple[int, int, float, int]]], *, hostile: bool) -> list[bool]:
    """Return whether each request of the honest tenant was begun at once, beside hostile ones or alone."""
    engine, begun = Engine(), []
    for number in range(HOSTILE if hostile else 0):  # all are known when it begins
        await engine.ask(f"hostile-{number}", 1, 0.0)
    for step in steps:
        await engine.pass_time(STEP_S)
        begun.append((await engine.ask("honest", HONEST_TOKENS, WORK_S)).is_set())
        for number, tokens, work_s, count in step if hostile else ():
            for _ in range(count):
                await engine.ask(f"hostile-{number}", tokens, work_s)
    assert engine.replica.in_flight <= PLACES
    await engine.close()
    assert (engine.replica.in_flight, engine.replica.tokens_in_flight) == (0, 0)
    return begun


@pytest.mark.further
@settings(max_examples=20, deadline=None)
@given(HOLDS)
def test_however_long_and_much_ten_hostile_tenants_hold_an_honest_one_is_begun_as_soon_as_alone(steps):
    alone = asyncio.run(hold(steps, hostile=False))
    assert asyncio.run(hold(steps, hostile=True)) == alone == [True] * len(steps)


@pytest.mark.further
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 2 * PLACED_TOKENS), min_size=1, max_size=40))
def test_everything_is_begun_in_the_end_however_much_it_asks_for(asked):
    async def work() -> bool:
        engine = Engine()
        begun = [await engine.ask(f"tenant-{n % 3}", tokens, 1.0) for n, tokens in enumerate(asked)]
        for _ in range(2 * len(asked) + 2):
            await engine.pass_time(0.2 * MAX_WAIT_S)
        await engine.close()
        return all(each.is_set() for each in begun)

    assert asyncio.run(work())


def test_one_tenant_alone_has_all_places():
    async def fill() -> int:
        engine = Engine()
        for _ in range(PLACES + 5):
            await engine.ask("acme", 10, 100.0)
        count = engine.replica.in_flight
        await engine.close()
        return count

    assert asyncio.run(fill()) == PLACES
