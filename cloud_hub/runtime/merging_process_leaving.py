"""When the hub has to go: a signal, or the file in which a machine on loan announces that it is taken away.

Rule: every notice means the same: not ready, nothing new, finish what is under way, keep the rest for the next start.
"""

import asyncio
import signal
from pathlib import Path

LOOK_EVERY_S = 0.5
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # the last is for whoever watches a cloud's notices


def on_signals(leave: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, leave.set)


async def watch(file: Path, leave: asyncio.Event) -> None:
    """Until the file is there."""
    while not await asyncio.to_thread(file.exists):  # noqa: ASYNC110 - a file rings no bell
        await asyncio.sleep(LOOK_EVERY_S)
    leave.set()
