"""However ten hostile tenants fill, flood and leave the queue of a model, an honest one is let in within its share."""

import asyncio
import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.settings import LlmSettings
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
