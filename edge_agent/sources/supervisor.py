"""Supervision of sources: runs each, answers what it puts in, restarts it with backoff, and reports it.

Rule: no reading and no device can end a source, and no source another. A defect is counted and logged by its place.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from edge_agent.question.records import AnswerRecord, DisabledError, NoModelError, Sample
from edge_agent.sources.counts import DropReason, SourceCounts, SourceState
from edge_agent.sources.feed import PreparationError, SampleFeed
from edge_agent.sources.source import DetailedSource, Intake, Reading, SampleSource, SourceError
from models.runtime.runner import SampleError
from policies.monitoring.backoff import compute_delay
from wire.process.logging import JsonLog, describe_error, safe_name, safe_text
from wire.process.tracing import begin_trace

AnswerListener = Callable[[str, AnswerRecord], None]  # name of the source, its answer


class RestartPauses(msgspec.Struct, frozen=True):
    """Pauses before a source is started again: drawn at random up to a step that doubles from `base_s` to `cap_s`.

    A source that was up for `steady_s` is restarted as if it had never failed.
    """

    base_s: float = 0.5
    cap_s: float = 30.0
    steady_s: float = 20.0


class SupervisedSource:
    """One source with its queue, its counters and its state."""

    def __init__(
        self, source: SampleSource, feed: SampleFeed, log: JsonLog, listen: AnswerListener, pauses: RestartPauses
    ) -> None:
        self.counts = SourceCounts()
        self.state = SourceState.STARTING
        self.last_error = ""
        self.unfit = False  # the last reading was no sample of this model
        self._source = source
        self._feed = feed
        self._log = log
        self._listen = listen
        self._pauses = pauses
        self._intake = Intake(self.counts, source.overflow, source.queue_size)
        self._intake.watch(self._on_alive)
        self._in_hand = 0
        self._attempt = 0
        self._up_since: float | None = None

    @property
    def name(self) -> str:
        """Name of the source."""
        return self._source.name

    def to_json(self) -> dict[str, Any]:
        """Its entry in the status."""
        waiting = len(self._intake) + self._in_hand
        more = self._source.to_json() if isinstance(self._source, DetailedSource) else {}
        return {
            "state": self.state.value,
            "error": self.last_error,
            "waiting": waiting,
            **self.counts.to_json(),
            **more,
        }

    async def run(self) -> None:
        """Run the source and answer what it gives, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_forever(), name=f"source {self.name}")
            for _ in range(self._source.parallel):
                tasks.create_task(self._answer_forever(), name=f"answers of {self.name}")

    async def _run_forever(self) -> None:
        while True:
            pause_s = 0.0
            try:
                await self._source.run(self._intake)
                reason = "ended"
            except SourceError as error:
                reason, pause_s = error.reason, error.pause_s
            except Exception as error:  # noqa: BLE001 - a defect of ours: told, and the source is started again
                self._log.defect("source_defect", error, source=safe_name(self.name))
                reason = "defect"
            await asyncio.sleep(pause_s + self._note_away(reason))

    def _on_alive(self) -> None:
        if self.state is SourceState.UP:
            return
        self._log.info("source_up", source=safe_name(self.name), failed=self._attempt)
        self.state, self.last_error = SourceState.UP, ""
        self._up_since = time.monotonic()

    def _note_away(self, reason: str) -> float:
        """Note that the device is away, one log line for each change; returns the pause before the next attempt."""
        error = safe_text(reason)
        if self.state is not SourceState.AWAY:
            self._log.warning("source_away", source=safe_name(self.name), error=error)
        if self._up_since is not None and time.monotonic() - self._up_since >= self._pauses.steady_s:
            self._attempt = 0
        self.state = SourceState.AWAY
        self.last_error = str(error)  # a plain str: msgspec encodes no subclass
        self._up_since = None
        self.counts.restarts += 1
        pause = compute_delay(self._attempt, random.random(), self._pauses.base_s, self._pauses.cap_s)  # noqa: S311
        self._attempt += 1
        return pause

    async def _answer_forever(self) -> None:
        while True:
            reading = await self._intake.take()
            self._in_hand += 1
            try:
                record = await self._answer_reading(reading)
            finally:
                self._in_hand -= 1
            if record is not None:
                self._listen(self.name, record)

    async def _answer_reading(self, reading: Reading) -> AnswerRecord | None:
        """Answer a reading; None, counted with its reason, if it is not answered."""
        try:
            x = self._feed.parse_sample(reading.parse)
            data_class = reading.data_class or self._feed.data_class
            record = await self._feed.service.infer(Sample(x, data_class, begin_trace(secrets.token_hex(16))))
        except NoModelError:
            self.counts.drop(DropReason.NO_MODEL)
        except DisabledError:
            self.counts.drop(DropReason.DISABLED)
        except PreparationError as error:
            self._note_unfit(DropReason.UNPREPARED, error)
        except SampleError as error:
            self._note_unfit(DropReason.UNFIT, error)
        except Exception as error:  # noqa: BLE001 - a defect of ours: told, and the next reading has its turn
            self.counts.drop(DropReason.DEFECT)
            self._log.defect("sample_defect", error)
        else:
            self.counts.answered += 1
            self.unfit = False
            return record
        return None

    def _note_unfit(self, reason: DropReason, error: SampleError) -> None:
        self.counts.drop(reason)
        if not self.unfit:
            self._log.warning("source_unfit", source=safe_name(self.name), error=describe_error(error))
        self.unfit = True


class SourceSupervisor:
    """All sources of an agent that have a device behind them; a component of its status."""

    def __init__(
        self,
        log: JsonLog,
        listen: AnswerListener = lambda _name, _record: None,
        pauses: RestartPauses = RestartPauses(),  # noqa: B008 - frozen
    ) -> None:
        """`listen` is called on the event loop with each answer, and must not raise."""
        self._log = log
        self._pauses = pauses
        self._listen = listen
        self._sources: dict[str, SupervisedSource] = {}
        self._others: dict[str, Callable[[], dict[str, Any]]] = {}

    @property
    def sources(self) -> Sequence[SupervisedSource]:
        """The sources, in the order in which they were added."""
        return tuple(self._sources.values())

    def add(self, source: SampleSource, feed: SampleFeed) -> None:
        """Add a source before `run`. ValueError if its name is taken."""
        if source.name in self._sources:
            raise ValueError(f"two sources are called {source.name}")
        self._sources[source.name] = SupervisedSource(source, feed, self._log, self._listen, self._pauses)

    def show(self, name: str, entry: Callable[[], dict[str, Any]]) -> None:
        """Show a source that runs by itself, such as the watched folder, among the others."""
        self._others[name] = entry

    async def run(self) -> None:
        """Run every source until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for source in self._sources.values():
                tasks.create_task(source.run(), name=source.name)

    def status_fields(self) -> dict[str, Any]:
        """`sources`: each source's state and counters."""
        return {"sources": self._entries()}

    def _entries(self) -> dict[str, dict[str, Any]]:
        supervised = {name: source.to_json() for name, source in self._sources.items()}
        return supervised | {name: entry() for name, entry in self._others.items()}

    def alarms(self) -> set[str]:
        """`source_away`: a device gives nothing. `source_unfit`: the last thing it gave was no sample of this model."""
        found = set()
        if any(entry["state"] == SourceState.AWAY.value for entry in self._entries().values()):
            found.add("source_away")
        if any(source.unfit for source in self._sources.values()):
            found.add("source_unfit")
        return found
