"""The agent: assembles the core, models, database and connections of one device, and supervises their tasks.

Rule: an exception in a handler is counted and logged without its text, and the task lives on; a task that ended all the
same is started again within a second or two. Local answers depend on the model alone, on no link, hub or disk.
"""

import asyncio
import secrets
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec

from edge_agent.app.status import StatusProvider, make_status
from edge_agent.identity.identity import HubKeys, Identity, make_hub_sites
from edge_agent.inference.class_threshold import CalibratedThreshold
from edge_agent.inference.model import ServingModel, make_core_setup
from edge_agent.inference.requests import SubjectHasher
from edge_agent.question.commands import CoreSetup
from edge_agent.question.decide import EdgeCore
from edge_agent.question.questions import HOME
from edge_agent.question.records import AnswerRecord, EventRecord, Sample
from edge_agent.question.seal import Envelopes, EscalationSealer, ModelFormat, PendingVerdicts
from edge_agent.runtime.answering import InferenceDependencies, InferenceService
from edge_agent.runtime.dispatch import InboundDispatcher
from edge_agent.runtime.executor import CommandExecutor
from edge_agent.runtime.maintenance import Maintenance, PolicyContextMonitor
from edge_agent.runtime.tasks import cancel_tasks
from edge_agent.storage import answers, erasing
from edge_agent.storage.database import Database
from edge_agent.storage.erasing import LocalErasure
from edge_agent.storage.journal import Journal
from edge_agent.storage.outbox import PayloadVault
from edge_agent.system.clock import HubClock, sleep_unless
from edge_agent.system.energy import EnergyMonitor
from edge_agent.system.settings import AgentSettings
from edge_agent.update.installer import Installer
from edge_agent.uplink.connection import Connect, ConnectionPool, Credentials, make_connector
from edge_agent.uplink.reports import RolloutReporter
from edge_agent.uplink.services import AgentServices
from edge_agent.uplink.witness import WitnessClient
from models.bundle.manifest import Manifest
from models.runtime.runner import Runner
from policies.decisions.routing import HubSite
from policies.model.policy import Policy
from wire.process.logging import JsonLog, safe_name
from wire.protocol.messages import HelloNote
from wire.protocol.rollout import Assignment
from wire.transport.base import IncomingMessage

AGENT_VERSION = "skerry-agent/1"
Work = Callable[[], Coroutine[Any, Any, None]]
DATABASE_FILE = "agent.db"
_RESTART_PAUSE_S = 1.0  # before a task that failed starts again


class Agent:
    """One device. `run` owns every task; the other methods are called on the same event loop."""

    _database: Callable[..., Database] = Database  # those of a live simulation sync no commit

    def __init__(
        self,
        settings: AgentSettings,
        identity: Identity,
        runner: Runner | None,
        policy: Policy | None,
        connect: Connect | Mapping[str, Credentials],
        *,
        clock: HubClock | None = None,
    ) -> None:
        """`runner` None: no model yet. `policy` None: nothing may leave.

        `connect`: how to reach the home broker, or the credentials of each line, the home line among them.
        """
        self._log = JsonLog(least=settings.log_level)
        self._settings = settings
        self._identity = identity
        model = ServingModel(runner, settings.inline_infer_s)
        self._counts: Counter[str] = Counter()
        self._clock = clock or HubClock(identity.hub_time_ms)
        self._db = self._database(settings.state_dir / DATABASE_FILE)
        lines = connect if isinstance(connect, Mapping) else {}
        others = {line: each.identity for line, each in lines.items() if line != HOME}
        self._envelopes = Envelopes(identity, others)
        self._core = EdgeCore(self._make_setup(model.form), policy)
        self._journal = Journal(settings, self._db, self._clock, self._counts)
        self._connections = ConnectionPool(settings, self._clock, self._counts, self._log)
        if not isinstance(connect, Mapping):
            self._connections.add_line(HOME, identity.device, connect)
        for line, each in lines.items():
            self._connections.add_line(line, each.identity.device, make_connector(each, settings.for_line(line)))
        self._assemble(model, PayloadVault(identity.payload_key))
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._opened = False
        self._install: Installer | None = None
        self._hint: Callable[[], None] | None = None  # of whoever looks for updates

    def _assemble(self, model: ServingModel, vault: PayloadVault) -> None:
        """Create what executes the core's commands, and what receives the hubs' messages."""
        settings, identity, envelopes = self._settings, self._identity, self._envelopes
        self._parts = parts = AgentServices(
            core=self._core, database=self._db, journal=self._journal, clock=self._clock, counts=self._counts,
            sealer=EscalationSealer(envelopes, vault, self._clock, model.form, max_age_s=settings.outbox.max_age_s),
            pending=PendingVerdicts(settings.frames_cache_bytes), connections=self._connections, envelopes=envelopes,
            energy=EnergyMonitor(settings.energy),
        )  # fmt: skip
        self._executor = executor = CommandExecutor(
            parts, HelloNote(0, secrets.token_hex(8), AGENT_VERSION, model.refs)
        )
        self._guard = PolicyContextMonitor(parts, executor, settings.attributes, identity.device)
        self._witness = WitnessClient(parts, executor.sender, identity, settings.heads_every_s)
        self.outgoing = RolloutReporter(parts, executor.sender)
        executor.on_commit_due = self._witness.add_meter
        told = (self._guard, self._witness, self.outgoing)
        self._sides: list[StatusProvider] = [*told]
        self._upkeep = Maintenance(parts, executor, self._guard, settings, self._log)
        means = InferenceDependencies(
            executor, SubjectHasher(vault), self._upkeep, self._make_setup, settings.inline_infer_s
        )
        self.answering = InferenceService(model, parts, means)
        self.on_sample_refused = self.answering.on_sample_refused
        self._post = InboundDispatcher(parts, executor, told, judged=self.answering.on_verdict, orders=self)

    # Start and stop

    async def open(self) -> None:
        """Open the database and restore its state. `run` does it too.

        Raises ExitError(DATABASE) if a newer version wrote it. A disk that allows no database is an alarm, not an end:
        the agent answers locally and tries again.
        """
        if self._opened:
            return
        self._opened = True
        self._journal.open()
        self.answering.measure_models()
        await self._upkeep.open_database()

    async def run(self) -> None:
        """Run connections, maintenance and the watchdog until `stop`.

        The watchdog is this very coroutine, so that nothing can end it alone.
        """
        await self.open()
        async with asyncio.TaskGroup() as group:
            works = {each.title: partial(each.run, self) for each in self._connections}
            works["upkeep"] = partial(self._upkeep.run, self._on_database_opened)
            await self._supervise(partial(self._check_tasks, group, works))
            await cancel_tasks(set(self._tasks.values()))
        await self._close_services()

    def stop(self) -> None:
        """Let `run` end."""
        self._stopping.set()

    async def _close_services(self) -> None:
        self._executor.close()
        self._journal.flush()
        self._witness.flush_meter()
        self._upkeep.save_time_floor()
        await self._db.close()
        self.answering.close()

    # Samples

    def answer_now(self, sample: Sample) -> "AnswerRecord | asyncio.Future[AnswerRecord]":
        """Answer a sample synchronously, without await or disk.

        A confident answer comes back at once, others as a future. Raises SampleError or DisabledError, as `infer`.
        """
        return self.answering.answer_now(sample)

    async def infer(self, sample: Sample) -> AnswerRecord:
        """Answer one sample.

        SampleError if it does not fit the model, DisabledError if the policy's mode answers nothing.
        """
        return await self.answering.answer_async(sample)

    # Records

    async def wait(self, id: str, timeout_s: float) -> list[AnswerRecord]:  # noqa: A002 - the product's word
        """All records of an answer id; waits up to `timeout_s` while the hub still owes one.

        Empty for an unknown id.
        """
        return await self._journal.wait_for(id, timeout_s)

    def events(self, after: int) -> AsyncIterator[EventRecord]:
        """Committed records with an event id above `after`, then each new one as it is committed. At least once."""
        return self._journal.stream_events(after)

    async def last_event(self) -> int:
        """The newest committed record's event id, 0 if there is none. A stream from there on has only new records."""
        return await self._journal.last_event()

    async def feedback(self, id: str, truth: float) -> bool:  # noqa: A002 - the product's word
        """Record the true label or value of an answer. False if the id is unknown."""
        known = await self._journal.store_truth(id, truth)
        for record in (await self._journal.records_for(id))[0][:1]:
            self.answering.on_feedback(record, truth)
        return known

    async def explain(self, id: str) -> dict[str, Any]:  # noqa: A002 - the product's word
        """What is known of one answer: its records, ledger entries and outcome, JSON-able. Empty for an unknown id."""
        return await self._journal.explain_answer(id)

    async def erase(self, subject: bytes) -> LocalErasure:
        """Forget the data subject of this keyed hash: its questions end, its answers are deleted.

        Returns once no file of the database holds them, or says which still does.
        """
        self._journal.flush()
        at_ms = self._clock.hub_ms()
        # before the next line ends the open questions, and with them their rows
        recorded = self._db.read(partial(answers.record_erased, subject=subject, at_ms=at_ms))
        self._executor.execute(self._core.on_erased(self._parts.pending.find_by_subject(subject), self._clock.now()))
        self._journal.forget_subject(subject)
        await recorded
        deleted = await self._db.read(partial(answers.erase_subject, subject=subject, at_ms=at_ms))
        return LocalErasure(deleted, (*await self._rewrite_database(), *erasing.list_left_aside(self._db.path)))

    async def _rewrite_database(self) -> tuple[str, ...]:
        """Rewrite the database without what was deleted; a line about what could not be done."""
        until = self._clock.now() + erasing.LOG_WAIT_S
        try:
            await self._db.read(erasing.rewrite_pages)
            while not await self._db.read(erasing.empty_log):
                if self._clock.now() > until:
                    return (erasing.describe_reader(self._db.path),)
                await asyncio.sleep(erasing.LOG_RETRY_S)
        except sqlite3.Error as error:
            return (erasing.describe_failure(self._db.path, error),)
        return ()

    # Settings, policies, hubs, models

    def use_settings(self, settings: AgentSettings) -> None:
        """Go by these limits from now on; `app.reloading` says which of them a running agent takes."""
        self._settings = settings
        self._log.set_level(settings.log_level)
        for each in (self._journal, self._upkeep, self._connections, self._guard, self._witness):
            each.use_settings(settings)
        self._core.on_model(msgspec.structs.replace(self._core.permissions.setup, limits=settings.outbox))
        self.answering.refresh_setup()

    def use_policy(self, policy: Policy | None) -> None:
        """Decide by this policy from now on; None: nothing may leave."""
        self._guard.prepare_policy(policy)
        self._executor.execute(self._core.on_policy(policy, self._clock.now()))

    def use_hubs(self, hubs: tuple[HubKeys, ...]) -> None:
        """Replace the hub keys of the home line."""
        self._envelopes.set_hubs(hubs)
        self.answering.refresh_setup()
        self._executor.execute(self._core.on_hubs(self._hub_sites(), self._clock.now()))

    def use_line_hubs(self, line: str, hubs: tuple[HubKeys, ...]) -> None:
        """Replace the hub keys of another line; the hubs' names stay, as policies know them by these."""
        self._envelopes.for_line(line).set_hubs(hubs)
        self._executor.execute(self._core.on_hubs(self._hub_sites(), self._clock.now()))

    async def use_bundle(self, runner: Runner | None) -> None:
        """Answer with this model from now on, or with none. Questions accepted before keep the model they name."""
        await self.answering.set_model(runner)

    def _make_setup(self, form: ModelFormat) -> CoreSetup:
        return make_core_setup(form, self._hub_sites(), self._envelopes, self._settings)

    def _hub_sites(self) -> tuple[HubSite, ...]:
        """Every hub on every line, as policies see it."""
        return make_hub_sites(self._envelopes.all_hubs(), self._settings.prices)

    @property
    def manifest(self) -> Manifest | None:
        """Manifest of the model that answers; None while there is none."""
        model = self.answering.model
        return model.manifest if model.present else None

    def on_hint(self, hint: Callable[[], None]) -> None:
        """From now on calling `hint` triggers a look for updates."""
        self._hint = hint

    def refresh(self) -> bool:
        """Look for updates soon. False if this agent takes no updates."""
        if self._hint is not None:
            self._hint()
        return self._hint is not None

    def count_event(self, kind: str) -> None:
        """Add one to a counter; `kind` is a fixed word, never input."""
        self._counts[kind] += 1

    def attach_installer(self, install: Installer) -> None:
        """Models that the home hub assigns are installed by this installer."""
        install.attach_agent(self._parts, self.answering, self.outgoing)
        self._install = install
        self.add_status_provider(install)

    def take_assignment(self, assignment: Assignment) -> None:
        """Pass on an assignment of our home hub. Ignored without an installer."""
        if self._install is not None:
            self._install.on_assignment(assignment)

    def set_threshold(self, threshold: CalibratedThreshold) -> None:
        """Escalate by the calibrated threshold of this device's class, while it holds its promised error rate."""
        self.answering.set_threshold(threshold)
        self.add_status_provider(threshold)

    def add_status_provider(self, side: StatusProvider) -> None:
        """Add a component's fields and alarms to the agent's status."""
        self._sides.append(side)

    async def reconnect(self, line: str = HOME) -> None:
        """Close a line's connection; another is made at once, with the current certificate. Stored questions stay."""
        await self._connections.connection_for(line).reset_connection()

    def status(self) -> dict[str, Any]:
        """The agent's status, JSON-able: device, epoch, model, policy, mode, link, disk, open questions, alarms."""
        manifest = self.manifest
        named = (self._identity.device, manifest.model if manifest else "")
        told = (self._upkeep.alarms(), [self.answering.model, *self._sides])
        return make_status(self._parts, named, self._executor.unrecorded, *told)

    @property
    def counts(self) -> dict[str, int]:
        """Counters by name, for metrics; names are fixed words, never input."""
        return dict(self._counts)

    # Callbacks of the connections

    def on_up(self, line: str = HOME) -> None:
        """A line is connected."""
        self._connections.mark_received(line)
        self._run_handler("up", lambda: self._executor.execute(self._core.on_link(True, self._clock.now(), line)))
        if line == HOME:
            for told in (self._witness, self.outgoing):
                self._run_handler("witness", told.on_connected)

    def _on_database_opened(self) -> None:
        for connection in self._connections:
            if connection.up:
                self.on_up(connection.line)

    def on_down(self, line: str = HOME) -> None:
        """A line has lost its connection."""
        self._run_handler("down", lambda: self._executor.execute(self._core.on_link(False, self._clock.now(), line)))

    def on_batch(self, batch: list[IncomingMessage], line: str = HOME) -> None:
        """Messages of the reply topic have arrived on a line."""
        self._connections.mark_received(line)
        for message in batch:
            self._run_handler("message", partial(self._post.dispatch_message, message, line))

    def on_order(self, payload: bytes, line: str = HOME) -> None:
        """A message of the topic `down/desired` has arrived on a line."""
        self._run_handler("order", partial(self._post.dispatch_order, payload, line))

    # Supervision

    async def _supervise(self, check: Callable[[], None]) -> None:
        """Call `check` at once and every `watchdog_s`, until `stop`."""
        while not self._stopping.is_set():
            check()
            await sleep_unless(self._stopping, self._settings.watchdog_s)

    def _check_tasks(self, group: asyncio.TaskGroup, works: Mapping[str, Work]) -> None:
        for title, work in works.items():
            self._ensure_task(group, title, work)
        self._run_handler("watch", self._run_watchdog)

    def _run_handler(self, what: str, handler: Callable[[], object]) -> None:
        """The one place where any exception is caught: a handler's failure ends the handler, not the task."""
        try:
            handler()
        except Exception as error:  # noqa: BLE001
            self._counts["handler_errors"] += 1
            self._log.defect("handler_failed", error, handler=safe_name(what))

    async def _restart_forever(self, title: str, work: Work) -> None:
        while True:
            try:
                await work()
            except Exception as error:  # noqa: BLE001
                self._counts["task_errors"] += 1
                self._log.defect("task_failed", error, task=safe_name(title))
            await asyncio.sleep(_RESTART_PAUSE_S)

    def _ensure_task(self, group: asyncio.TaskGroup, title: str, work: Work) -> None:
        task = self._tasks.get(title)
        if task is not None and not task.done():
            return
        if task is not None:
            self._counts["tasks_revived"] += 1
            self._log.warning("task_revived", task=safe_name(title))
        self._tasks[title] = group.create_task(self._restart_forever(title, work), name=f"agent-{title}")

    def _run_watchdog(self) -> None:
        if self._db.is_open and not self._db.is_alive:
            self._counts["writer_revived"] += 1
            self._db.restart_writer()
        self._upkeep.report_trouble()
        self._executor.flush_marks()
        self._guard.refresh_context()
        self._witness.send_due()
        self.outgoing.send_due()
        for line in self._connections.find_silent_lines(self._core.open_questions, self._settings.silent_after_s):
            self._counts["link_silent"] += 1
            self._tasks[self._connections.connection_for(line).title].cancel()  # its successor connects anew
