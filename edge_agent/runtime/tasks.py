"""Tasks of an agent: how they are ended."""

import asyncio


async def cancel_tasks(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended: a library's `wait_for` may swallow a cancellation (Python 3.11)."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=0.5)
