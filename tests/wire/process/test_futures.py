"""Work that several callers wait for outlives any one of them, and its late error is heard nowhere else."""

import asyncio
import gc
from typing import Any

import pytest

from wire.process.futures import await_shared


async def test_the_work_goes_on_when_one_of_its_callers_is_cancelled():
    work = asyncio.get_running_loop().create_future()
    gone, there = asyncio.create_task(await_shared(work)), asyncio.create_task(await_shared(work))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    work.set_result(7)
    assert (gone.cancelled(), await there) == (True, 7)


async def test_an_error_is_its_callers_and_one_after_they_have_gone_is_no_word_to_the_event_loop():
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: heard.append(context))
    work = asyncio.get_running_loop().create_future()
    gone = asyncio.create_task(await_shared(work))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    work.set_exception(OSError("late"))
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="late"):
        await await_shared(work)
    lost = asyncio.get_running_loop().create_future()
    caller = asyncio.create_task(await_shared(lost))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    lost.set_exception(OSError("nobody waits"))
    await asyncio.sleep(0)
    del lost, caller, work, gone
    gc.collect()
    assert heard == []
