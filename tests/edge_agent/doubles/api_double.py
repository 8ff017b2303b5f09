"""Agent double for API tests: the shipped EchoRunner answers; records, events and feedback are kept in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import msgspec

from edge_agent.api.app import ApiServer, build_app
from edge_agent.api.service import AnswerService, InferLimits
from edge_agent.question.records import AnswerKind, AnswerRecord, AnswerSource, DisabledError, EventRecord, Sample
from edge_agent.storage.answers import encode_explained
from edge_agent.storage.erasing import LocalErasure
from models.bundle.manifest import InputSpec, Manifest
from models.runtime.runner import EchoRunner, SampleError, echo_manifest
from policies.model.reasons import DecisionReason
from wire.http.access import ServerAccess
from wire.http.guards import IDLE_TIMEOUT_S

POLICY = "ab" * 16


class MemoryAgent:
    """An agent whose answers are all local; an unsure one has an open question until `verdict` is called."""

    def __init__(self) -> None:
        self.runner = EchoRunner(labels=3, version=7)
        self.mode = "answer_now"
        self.updating = True
        self.refreshed = 0
        self.samples: list[Sample] = []
        self.before = echo_manifest(labels=2)
        self.refused: list[bool] = []  # whether the model before takes what was refused
        self.records: list[AnswerRecord] = []
        self.truths: dict[str, float] = {}
        self.closed: set[str] = set()  # answers whose question ended without a verdict
        self._changed = asyncio.Condition()

    @property
    def manifest(self) -> Manifest | None:
        return self.runner.manifest if self.mode != "no model" else None

    def refresh(self) -> bool:
        self.refreshed += 1
        return self.updating

    def on_sample_refused(self, parse: Callable[[InputSpec], object]) -> None:
        try:
            parse(self.before.input)
            self.refused.append(True)
        except SampleError:
            self.refused.append(False)

    async def infer(self, sample: Sample) -> AnswerRecord:
        if self.mode == "disabled":
            raise DisabledError
        if self.mode == "defect":
            raise ZeroDivisionError
        prediction = self.runner.infer_one(sample.x).prediction
        sure = prediction.confidence >= 0.5
        number = len(self.records) + 1
        record = AnswerRecord(
            id=f"{number:032x}",
            kind=AnswerKind.ANSWER,
            source=AnswerSource.LOCAL,
            why=DecisionReason.CONFIDENT if sure else DecisionReason.UNSURE,
            prediction=prediction,
            policy=POLICY,
            data_class=sample.data_class,
            seq="" if sure else f"beef-{number}",
            trace=sample.trace,
            event=number,
        )
        self.samples.append(sample)
        await self._keep(record)
        return record

    async def verdict(self, answer_id: str, label: int) -> None:
        first = next(r for r in self.records if r.id == answer_id)
        prediction = msgspec.structs.replace(first.prediction, label=label)
        changed = {
            "kind": AnswerKind.CORRECTION,
            "source": AnswerSource.HUB,
            "why": DecisionReason.VERDICT,
            "event": len(self.records) + 1,
        }
        await self._keep(msgspec.structs.replace(first, prediction=prediction, **changed))

    async def refuse(self, answer_id: str) -> None:
        """The question of this answer ends without a verdict."""
        async with self._changed:
            self.closed.add(answer_id)
            self._changed.notify_all()

    async def wait(self, id: str, timeout_s: float) -> list[AnswerRecord]:  # noqa: A002
        def found() -> list[AnswerRecord]:
            return [r for r in self.records if r.id == id]

        def settled() -> bool:
            return not found() or not found()[0].seq or len(found()) > 1 or id in self.closed

        async with self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(settled), timeout_s)
            return found()

    async def events(self, after: int) -> AsyncIterator[EventRecord]:
        at = [after]
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: len(self.records) > at[0])
            for record in self.records[at[0] :]:
                at[0] = record.event
                yield EventRecord(record.event, record)

    async def last_event(self) -> int:
        return len(self.records)

    async def feedback(self, id: str, truth: float) -> bool:  # noqa: A002
        known = any(r.id == id for r in self.records)
        if known:
            self.truths[id] = truth
        return known

    async def explain(self, id: str) -> dict[str, Any]:  # noqa: A002
        records = [encode_explained(record) for record in self.records if record.id == id]
        told = {"id": id, "records": records, "ledger": [], "outcome": None, "truth": self.truths.get(id)}
        return told if records else {}

    async def erase(self, subject: bytes) -> LocalErasure:
        gone = [record for record in self.records if subject and record.subject == subject]
        self.records = [record for record in self.records if record not in gone]
        return LocalErasure(len(gone))

    def status(self) -> dict[str, Any]:
        model = "" if self.manifest is None else self.manifest.model
        return {"mode": self.mode, "link": "up", "open": 0, "model": model}

    @property
    def counts(self) -> dict[str, int]:
        return {"answers": len(self.records)}

    async def _keep(self, record: AnswerRecord) -> None:
        async with self._changed:
            self.records.append(record)
            self._changed.notify_all()


@asynccontextmanager
async def serve_api(
    agent: AnswerService, access: ServerAccess | None = None, **options: Any
) -> AsyncIterator[aiohttp.ClientSession]:
    """A client session with a running server, on a free port.

    `access`: who may call; `options`: of `build_app`, and `idle_s` of the server.
    """
    access = access or ServerAccess()
    limits = options.pop("limits", InferLimits(max_body_bytes=64 * 1024, max_batch=8))
    idle_s = options.pop("idle_s", IDLE_TIMEOUT_S)
    app = build_app(agent, access, limits=limits, version="1.2.3", **options)
    server = ApiServer(app, access, idle_s)
    url = await server.start()
    try:
        async with aiohttp.ClientSession(base_url=url) as session:
            yield session
    finally:
        await server.stop()
