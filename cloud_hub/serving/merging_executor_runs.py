"""Batches on their way through the engines: short ones inline, the others on the threads of their lane.

Rule: one inline batch at a time. The next one comes after whoever else waits for the event loop.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from cloud_hub.core import commands as c
from cloud_hub.core.core import HubCore
from cloud_hub.engine.worker import Result
from cloud_hub.serving.merging_executor_engines import Engines
from wire.process.logging import Log, name

Hear = Callable[..., None]
Computed = Callable[[int, Result], None]


class Runs:
    """`hear` tells the core one thing and obeys; `told` does so and then the round; `computed` watches."""

    def __init__(self, core: HubCore, engines: Engines, hears: tuple[Hear, Hear], log: Log, computed: Computed) -> None:
        self._core = core
        self._engines = engines
        self._hear, self._told = hears
        self._log = log
        self._computed = computed
        self._inlined = False
        self._checks: set[asyncio.Task[None]] = set()

    def infer(self, command: c.Infer) -> None:
        loop = asyncio.get_running_loop()
        if self._inlined:
            loop.call_soon(self.infer, command)
            return
        lane = self._engines.lane(command.model)
        batch = [item.work for item in command.items]
        result = lane.inline(batch)
        if result is None:
            lane.submit(batch, partial(self._on_late, command.ticket))
            return
        self._inlined = True
        self._on_result(command.ticket, result)
        self._inlined = False
        loop.call_soon(self._told, self._nothing)

    def check(self, command: c.Check) -> None:
        """The engine's own sample, behind whatever is running."""
        task = asyncio.create_task(self._checked(command.model), name=f"hub-check-{command.model}")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    def on_loaded(self, model: str, why: str, card: object) -> None:
        """An engine is ready, or `why` it is not."""
        if not why:
            self._hear(self._core.lineup.measured, model, self._engines.cost(model))
        self._told(self._core.lineup.on_loaded, model, why, card)

    async def start(self) -> None:
        """Warm up the engines that were given, and tell the core what they cost."""
        await self._engines.start()
        for card in self._engines.cards:
            self._hear(self._core.lineup.measured, card.name, self._engines.cost(card.name))

    def _nothing(self, now: float) -> list[c.Command]:
        """A round without news."""
        del now
        return []

    def _on_late(self, ticket: int, result: Result) -> None:
        self._on_result(ticket, result)
        self._told(self._nothing)

    def _on_result(self, ticket: int, result: Result) -> None:
        self._computed(ticket, result)
        if result.error:
            self._log.warning("engine_failed", error=name(result.error))
            self._hear(self._core.on_engine_failed, ticket)
        else:
            self._hear(self._core.on_results, ticket, result.predictions, result.seconds)

    async def _checked(self, model: str) -> None:
        result = await self._engines.lane(model).probe()
        if result.error:
            self._log.error("engine_down", model=name(model), error=name(result.error))
        self._told(self._core.on_checked, model, not result.error)
