"""Steps of a stream that take too long end their block; steps in time never do, however many there are."""

import asyncio

import pytest

from cloud_hub.llm.step_limit import StepLimit

LONG_S = 60.0


@pytest.mark.further
async def test_many_steps_in_time_may_take_longer_together_than_one_may():
    async with StepLimit(LONG_S) as limit:
        for _ in range(20):
            limit.begin(1.0)
            await asyncio.sleep(0.06)
    assert not limit.is_over


async def wait_for_ever(limit: StepLimit, *steps_s: float) -> None:
    async with limit:
        for within_s in steps_s:
            limit.begin(within_s)
        await asyncio.Event().wait()


async def test_a_step_that_takes_too_long_ends_the_block():
    limit = StepLimit(LONG_S)
    with pytest.raises(TimeoutError):
        await wait_for_ever(limit, 0.01)
    assert not limit.is_over


async def test_a_shorter_step_after_a_longer_one_is_held_to_its_own_limit():
    with pytest.raises(TimeoutError):
        await wait_for_ever(StepLimit(LONG_S), LONG_S, 0.01)


async def test_a_longer_step_after_a_shorter_one_gets_its_whole_time():
    loop = asyncio.get_running_loop()
    async with StepLimit(LONG_S) as limit:
        limit.begin(0.02)
        limit.begin(LONG_S)
        began = loop.time()
        while loop.time() < began + 0.1:  # the timer of the first step fires meanwhile
            await asyncio.sleep(0.01)


async def test_all_steps_together_are_limited_too():
    limit = StepLimit(0.05)
    with pytest.raises(TimeoutError):
        await wait_for_ever(limit, LONG_S)
    assert limit.is_over


async def test_a_block_that_has_ended_leaves_no_timer_behind():
    async with StepLimit(LONG_S) as limit:
        limit.begin(0.01)
    await asyncio.sleep(0.05)  # a timer left behind would cancel this task


async def test_what_is_cancelled_from_outside_stays_cancelled():
    task = asyncio.create_task(wait_for_ever(StepLimit(LONG_S), LONG_S))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
