"""Corrections that the callers of a sample source are still owed: each is passed on once, as it is committed. No I/O.

Rule: the event stream brings them; whoever ends waits for each answer that is still owed, for a limited time.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from edge_agent.api.service import AnswerService
from edge_agent.question.records import AnswerKind, AnswerRecord, AnswerSource

MAX_OWED = 10_000  # answers that are watched; beyond them the oldest are forgotten here, not by the agent


class OwedCorrections:
    """The answers of one source whose correction may still come, and what to do with it."""

    def __init__(self, service: AnswerService) -> None:
        self._service = service
        self._owed: OrderedDict[str, Callable[[AnswerRecord], None]] = OrderedDict()

    def expect(self, answer: AnswerRecord, deliver: Callable[[AnswerRecord], None]) -> None:
        """Call `deliver` with the correction of this answer if one comes. A local answer without a question has none.

        `deliver` is called once, on the event loop, and must not raise.
        """
        if answer.seq and answer.source is AnswerSource.LOCAL:
            self._owed[answer.id] = deliver
            if len(self._owed) > MAX_OWED:
                self._owed.popitem(last=False)

    def offer(self, record: AnswerRecord) -> None:
        """Deliver a record if it is a correction that is owed."""
        if record.kind is AnswerKind.CORRECTION and record.id in self._owed:
            self._owed.pop(record.id)(record)

    async def follow(self, after: int) -> None:
        """Deliver corrections above this event number as they are committed, until cancelled."""
        async for event in self._service.events(after):
            self.offer(event.answer)

    async def settle(self, timeout_s: float) -> int:
        """Wait until every correction came or its question ended without one. Returns how many are owed even then."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        for id_ in tuple(self._owed):
            for record in await self._service.wait(id_, max(0.0, until - loop.time())):
                self.offer(record)
            if loop.time() < until:
                self._owed.pop(id_, None)  # it ended without a correction
        return len(self._owed)
