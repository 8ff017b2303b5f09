"""The agent's end of an install errand: starts the process, hears its lines, answers them, ends it."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

import edge_agent
from edge_agent.errand_job import Errand, Said
from wire.rollout import Failure, InstallState

MAX_LINE_BYTES = 1 << 20
_ROOT = Path(edge_agent.__file__).parents[1]


class InstallRoad:
    """One errand at a time; `busy` is held while its process has the store.

    `reached`: it is about to do that, and waits for `proceed`.
    """

    def __init__(self, busy: asyncio.Lock, reached: Callable[[InstallState], None]) -> None:
        self._busy = busy
        self._reached = reached
        self._go = asyncio.Event()

    def proceed(self) -> None:
        self._go.set()

    async def run(self, errand: Errand, deadline_s: float) -> Said:
        """Its last word; one that ends without is a failure like any other. Cancelled, it ends its process."""
        async with self._busy:
            try:
                async with asyncio.timeout(deadline_s):
                    return await self._run(errand)
            except TimeoutError:
                return Said(failure=Failure.SLOW_RETRIEVAL, detail=f"no end within {deadline_s:g} s")

    async def _run(self, errand: Errand) -> Said:
        words = (sys.executable, "-m", "edge_agent.install_errand")
        pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            child = await asyncio.create_subprocess_exec(
                *words, stdin=pipe, stdout=pipe, stderr=nowhere, cwd=_ROOT, limit=MAX_LINE_BYTES
            )
        except OSError as error:
            return Said(failure=Failure.INTERNAL, detail=f"no process: {error.strerror}")
        try:
            return await self._talk(child, errand)
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()

    async def _talk(self, child: asyncio.subprocess.Process, errand: Errand) -> Said:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("both are pipes")
        line = msgspec.json.encode(errand)
        try:
            while True:
                child.stdin.write(line + b"\n")
                await child.stdin.drain()
                said = msgspec.json.decode(await child.stdout.readline(), type=Said)
                if said.reached is None:
                    return said
                self._go.clear()
                self._reached(said.reached)
                await self._go.wait()
                line = b"{}"
        except (ValueError, ConnectionError):  # nothing, no JSON, or a line without an end
            return Said(failure=Failure.INTERNAL, detail=f"the errand ended with {await child.wait()}")
