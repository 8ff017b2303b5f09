"""Asyncio side of sessions: keeps devices' lists of frames, and begins a session if no frame is missing on them.

Rule: a list is acknowledged once it is on disk. An offer is answered after the look into the database, or not at all:
a device whose lists lack a frame goes on with questions that it signs, each by itself.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.core.commands import KeepFrameList, OpenSession
from cloud_hub.database.connection import Location, connect_part
from cloud_hub.database.errors import log_fault
from cloud_hub.database.parts import QUESTIONS
from cloud_hub.storage.frame_lists import FrameLists
from wire.process.logging import JsonLog, safe_name
from wire.protocol.messages import DownNote
from wire.protocol.session_notes import SealedFrameReceipt

Query = Callable[[Callable[[FrameLists], int]], Awaitable[int]]
SessionCommand = KeepFrameList | OpenSession


class SessionBackend(NamedTuple):
    """What the service needs: how to query the lists in their thread, begin a session, and send a note.

    `questions`: where the questions are stored; `now_ms`: hub time; `words`: the log.
    """

    query: Query
    accept: Callable[[OpenSession], None]
    tell: Callable[[str, DownNote], None]
    now_ms: Callable[[], int]
    questions: Location
    words: JsonLog


class SessionService:
    """Carries out the core's commands about sessions, in their order."""

    def __init__(self, backend: SessionBackend, counts: Counter[str]) -> None:
        self._backend = backend
        self._counts = counts
        self._waiting: list[SessionCommand] = []
        self._questions: sa.Engine | None = None

    def add(self, command: SessionCommand) -> None:
        """Queue a command until the next `run_waiting`."""
        self._waiting.append(command)

    async def run_waiting(self) -> None:
        """Carry out what is queued. What the database does not take is dropped and counted: devices repeat it."""
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for command in waiting:
                try:
                    await self._run(command)
                except SQLAlchemyError as error:
                    self._counts["sessions.failed"] += 1
                    log_fault(self._backend.words, "session_failed", error)

    def close(self) -> None:
        """Close the connection to the questions."""
        if self._questions is not None:
            self._questions.dispose()

    async def _run(self, command: SessionCommand) -> None:
        if isinstance(command, KeepFrameList):
            await self._keep_list(command)
        else:
            await self._open_session(command)

    async def _keep_list(self, command: KeepFrameList) -> None:
        received_ms, listed = self._backend.now_ms(), command.listed

        def keep(lists: FrameLists) -> int:
            lists.add(command, received_ms)
            return received_ms

        await self._backend.query(keep)
        self._counts["sessions.lists"] += 1
        self._backend.tell(command.device, SealedFrameReceipt(listed.epoch, listed.hub, listed.entries))

    async def _open_session(self, command: OpenSession) -> None:
        device, now_ms = command.device.id, self._backend.now_ms()
        missing = await self._backend.query(lambda lists: lists.find_unlisted(self._connect(), device, now_ms))
        if missing:
            self._counts["sessions.unlisted"] += 1
            self._backend.words.warning("frames_unlisted", device=safe_name(device), frames=missing)
            return
        self._counts["sessions.opened"] += 1
        self._backend.accept(command)

    def _connect(self) -> sa.Engine:
        if self._questions is None:
            self._questions = connect_part(self._backend.questions, QUESTIONS)
        return self._questions
