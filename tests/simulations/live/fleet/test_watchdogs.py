"""One timer for the watchdogs of thousands of agents."""

import asyncio
from collections import Counter
from contextlib import ExitStack

from simulations.live.fleet.watchdogs import SLOTS, WatchdogWheel


async def test_every_agent_is_checked_once_a_round_and_no_more_after_it_has_gone():
    wheel, checked, rounds = WatchdogWheel(0.2), Counter[int](), asyncio.Event()

    def check(number: int) -> None:
        checked[number] += 1
        if checked[number] == 3 and number == 0:
            rounds.set()

    with ExitStack() as stack:
        for number in range(3 * SLOTS):
            stack.enter_context(wheel.attach(number, lambda number=number: check(number)))  # type: ignore[misc]
        async with asyncio.timeout(60):
            await rounds.wait()
        assert set(checked) == set(range(3 * SLOTS))
        assert set(checked.values()) <= {2, 3}
    before = checked.total()
    await asyncio.sleep(0.01)
    assert checked.total() == before


async def test_a_check_may_detach_itself_and_another_agent_may_come_later():
    wheel, checked, seen = WatchdogWheel(0.1), Counter[str](), asyncio.Event()
    first = ExitStack()

    def leave() -> None:
        checked["first"] += 1
        first.close()

    first.enter_context(wheel.attach(1, leave))
    first.enter_context(wheel.attach(1 + SLOTS, lambda: checked.update(["neighbour"])))
    async with asyncio.timeout(60):
        while not checked["first"]:
            await asyncio.sleep(0)
    with wheel.attach(7, seen.set):
        async with asyncio.timeout(60):
            await seen.wait()
    assert checked["first"] == 1
