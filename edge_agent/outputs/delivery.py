"""Delivery of committed records to one output: which of them, in which form, at least once and in their order.

Rule: the position moves only past records that the target took, or that were dropped with a counted reason. Memory
holds two pages of records and no more, as agent.db holds the rest; a target that is away is waited for.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from edge_agent.api.service import AnswerService, find_label_name, make_answer_json
from edge_agent.outputs.position import OutputPosition, PositionFile
from edge_agent.outputs.settings import OutputKind, OutputSection, RecordChoice
from edge_agent.question.records import AnswerKind, AnswerRecord, EventRecord
from models.bundle.manifest import Manifest
from policies.model.reasons import Denied
from policies.monitoring import backoff
from wire.process.exit_codes import ExitError
from wire.process.logging import JsonLog, LinkLog, safe_name, safe_text

MAX_BATCH = 64
_QUEUED = 256  # records read ahead of the target
_SAVE_EVERY_S = 5.0
_RETRY_BASE_S, _RETRY_CAP_S = 0.5, 60.0
_LOG_EVERY_S = 60.0
_CHOICES = {RecordChoice.ANSWERS: AnswerKind.ANSWER, RecordChoice.CORRECTIONS: AnswerKind.CORRECTION}


class OutputGate(Protocol):
    """What the agent knows of the policy and the time."""

    def check_output(self, data_class: str) -> Denied | None:
        """Why an answer to a sample of this class may not be handed to another machine now; None if it may."""
        ...

    def hub_ms(self) -> int:
        """Hub time in milliseconds since 1970."""
        ...


class OutputMessage(NamedTuple):
    """A record as it is handed on: its JSON object, and the same encoded."""

    record: AnswerRecord
    content: dict[str, Any]
    body: bytes


class DeliveryError(Exception):
    """A batch was not taken, and is tried again. `reason`: in words. `counted`: only a bounded number of times.

    `retry_after_s`: when the target wants to be asked again; 0 = it did not say. `waited`: the target has waited by
    itself, so that it can be tried again at once.
    """

    def __init__(self, reason: str, *, counted: bool = False, retry_after_s: float = 0.0, waited: bool = False) -> None:
        super().__init__(reason)
        self.counted = counted
        self.retry_after_s = retry_after_s
        self.waited = waited


class OutputTarget(Protocol):
    """What an output hands records to."""

    trouble: str  # why nothing could be sent now, also while there is nothing to send; "" = it could

    async def run(self) -> None:
        """Keep what the target needs, such as a connection, until cancelled."""
        ...

    async def send(self, batch: Sequence[OutputMessage]) -> Mapping[str, int]:
        """Hand on a batch; returns how many records the target will never take, by reason. Raises DeliveryError."""
        ...


class RecordSelection:
    """Which records an output hands on, and their form."""

    def __init__(self, section: OutputSection) -> None:
        self._section = section
        self._fields = frozenset(section.fields)
        self._kind = _CHOICES.get(section.only)

    def selects(self, record: AnswerRecord, manifest: Manifest | None) -> bool:
        """Whether the configuration wants this record."""
        wanted, said = self._section, record.prediction
        if self._kind is not None and record.kind is not self._kind:
            return False
        if wanted.data_class and record.data_class not in wanted.data_class:
            return False
        if not said.confidence >= wanted.min_confidence:
            return False
        names = (find_label_name(said.label, manifest), str(said.label))
        return not wanted.labels or any(name in wanted.labels for name in names)

    def encode(self, record: AnswerRecord, manifest: Manifest | None, device: str) -> OutputMessage:
        """The record as JSON, with the device's name."""
        content = {"device": device, **make_answer_json(record, manifest)}
        if self._fields:
            content = {key: value for key, value in content.items() if key in self._fields}
        return OutputMessage(record, content, msgspec.json.encode(content))


class OutputDelivery:
    """One output at work. `state`: the agent's folder, which keeps its position."""

    def __init__(
        self, section: OutputSection, service: AnswerService, gate: OutputGate, target: OutputTarget, state: Path,
        *, log: JsonLog,
    ) -> None:  # fmt: skip
        self._section = section
        self._leaves = section.leaves_machine
        self._service = service
        self._target = target
        self._position = PositionFile(state, section.name)
        self._gate = gate
        self._selection = RecordSelection(section)
        self._log = log
        self._link = LinkLog(log, safe_name(f"output:{section.name}"))
        self._queue: asyncio.Queue[EventRecord] = asyncio.Queue(_QUEUED)
        self._device = ""
        self._at = OutputPosition()
        self._saved = OutputPosition()
        self._attempt = 0
        self._unlogged: Counter[str] = Counter()
        self._logged_s = -_LOG_EVERY_S
        self.error = ""
        self.counts: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    async def run(self) -> None:
        """Deliver until cancelled; the position is written every few seconds, and at the end."""
        event = await self._find_start()
        self._queue = asyncio.Queue(_QUEUED)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._target.run(), name=f"output {self._section.name} target")
                tasks.create_task(self._read_events(event), name=f"output {self._section.name} reader")
                tasks.create_task(self._send_forever(), name=f"output {self._section.name} sender")
                tasks.create_task(self._save_forever(), name=f"output {self._section.name} position")
        finally:
            self._save()

    async def _find_start(self) -> int:
        """The event after which to begin: that of the position; a new output begins with what is new.

        Where it begins is written at once: a crash soon after must not make it begin later.
        """
        status = self._service.status()
        epoch, self._device = str(status.get("epoch", "")), str(status.get("device", ""))
        found = self._position.read()
        if found is None:
            event = await self._service.last_event()
        else:
            event = found.event if found.epoch == epoch else 0  # a new agent.db counts from 1
        self._at = OutputPosition(epoch, event)
        self._save()
        return event

    @property
    def trouble(self) -> str:
        """Why nothing is taken now; "" if nothing is known to be wrong."""
        return self.error or self._target.trouble

    def has_delivered(self, event: int) -> bool:
        """Whether every record up to this event was handed on, dropped or filtered."""
        return self._at.event >= event

    def status_fields(self) -> dict[str, Any]:
        """What the status says of this output."""
        return {
            "kind": self._section.kind,
            "state": "away" if self.trouble else "ok",
            "error": self.trouble,
            "event": self._at.event,
            "sent": self.counts["sent"],
            "filtered": self.counts["filtered"],
            "dropped": dict(self.dropped),
        }

    # Reading

    async def _read_events(self, after: int) -> None:
        async for event in self._service.events(after):
            if event.event > after + 1:
                self._drop("gone", event.event - after - 1)  # pruned or erased before they were sent
            after = event.event
            await self._queue.put(event)

    async def _send_forever(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < self._batch_size and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                await self._deliver(batch)
            except Exception as error:  # noqa: BLE001 - a defect of ours: told, and the next record has its turn
                self._log.defect("output_defect", error, output=safe_name(self._section.name))
                self._drop("defect", len(batch))
            self._at = self._at._replace(event=batch[-1].event)

    @property
    def _batch_size(self) -> int:
        return self._section.batch if self._section.kind is OutputKind.WEBHOOK else MAX_BATCH

    # Sending

    async def _deliver(self, events: Sequence[EventRecord]) -> None:
        """Deliver a batch, however long the target is away; what is no longer wanted or allowed by then is dropped."""
        wanted = [each for each in events if self._selection.selects(each.answer, self._service.manifest)]
        self.counts["filtered"] += len(events) - len(wanted)
        events, failed = wanted, 0
        while events:
            events = self._keep_allowed(events)
            batch = [self._selection.encode(each.answer, self._service.manifest, self._device) for each in events]
            try:
                refused = await self._target.send(batch) if batch else {}
            except DeliveryError as error:
                failed += error.counted
                if failed >= self._section.attempts:
                    self._drop("gave_up", len(events))
                    return
                await self._wait_for_target(error)
            else:
                self._on_taken(len(batch), refused)
                return

    def _keep_allowed(self, events: Sequence[EventRecord]) -> list[EventRecord]:
        """The records that may leave now, and are not too old."""
        kept, now_ms = [], self._gate.hub_ms()
        for event in events:
            denied = self._gate.check_output(event.answer.data_class) if self._leaves else None
            if denied is not None:
                self._drop(denied.why.value, 1)
            elif now_ms - event.answer.at_ms > self._section.max_age_s * 1000:
                self._drop("too_old", 1)
            else:
                kept.append(event)
        return kept

    def _on_taken(self, sent: int, refused: Mapping[str, int]) -> None:
        for reason, count in refused.items():
            self._drop(reason, count)
        self.counts["sent"] += sent - sum(refused.values())
        self._attempt = 0
        if self.error and sent:
            self.error = ""
            self._link.on_up()

    async def _wait_for_target(self, error: DeliveryError) -> None:
        if not self.error:
            self._link.on_up()  # so that the failure is told as a change
        self.error = str(error)[:200] or "away"
        self._link.on_failed(self.error)
        self.counts["retries"] += 1
        if error.waited:
            return
        pause_s = backoff.compute_delay(self._attempt, random.random(), _RETRY_BASE_S, _RETRY_CAP_S)  # noqa: S311 - jitter
        self._attempt += 1
        await asyncio.sleep(max(pause_s, error.retry_after_s))

    def _drop(self, reason: str, count: int) -> None:
        """Count records that are not handed on, with at most one log line a minute."""
        self.dropped[reason] += count
        self._unlogged[reason] += count
        now = asyncio.get_running_loop().time()
        if now - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now
            for why, unlogged in self._unlogged.items():
                name = safe_name(self._section.name)
                self._log.warning("output_dropped", output=name, reason=safe_text(why), records=unlogged)
            self._unlogged.clear()

    # Position

    async def _save_forever(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_EVERY_S)
            if self._at != self._saved:
                await asyncio.to_thread(self._save)

    def _save(self) -> None:
        at = self._at
        with contextlib.suppress(ExitError):  # a full disk: tried again; until then a restart sends some once more
            if at.epoch:
                self._position.write(at)
                self._saved = at
