"""Waiting, and ending what waits."""

import asyncio


async def end(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel until it is heard: a library's `wait_for` may swallow a cancellation (Python 3.11)."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=0.5)


async def pause(stopping: asyncio.Event, seconds: float) -> None:
    """Sleep, but not past `stopping`."""
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return
