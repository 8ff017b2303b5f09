"""Ends the connections of a test server's event loop before the loop ends.

A polite close is not enough: over TLS it waits for the client's goodbye, and a client may say it late, never, or in the
middle of its handshake. What a loop leaves open is a warning later, in whichever test the garbage collector runs.
"""

import asyncio


async def abort_transports() -> None:
    """Abort every connection of the running loop, at the end of a thread's own loop: clients may see a reset.

    No server of the loop may listen any more.
    """
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0)  # a connection just accepted has its transport a turn later
    for transport in list(loop._transports.values()):  # type: ignore[attr-defined]
        transport.abort()
    waiting = asyncio.all_tasks() - {asyncio.current_task()}
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for _ in range(2):
        await asyncio.sleep(0)  # a transport that was aborted closes its socket a turn later
