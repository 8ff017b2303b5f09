"""The agent: draws the dice, runs the model, keeps its tasks alive.

Law: an exception in a handler is counted and logged without its text, and the task lives on; what died all the same is
started again within a second or two. Local answers depend on the model alone: no link, no hub, no disk is waited for.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

from edge_agent import answers
from edge_agent.answering import Answering, Means
from edge_agent.clock import HubClock
from edge_agent.commands import Setup
from edge_agent.core import EdgeCore
from edge_agent.database import Database
from edge_agent.desk import Desk, Form
from edge_agent.envelope import Envelopes
from edge_agent.guard import Guard
from edge_agent.hands import Hands
from edge_agent.identity import HubKeys, Identity, sites
from edge_agent.install import Install
from edge_agent.intake import Intake
from edge_agent.journal import Journal
from edge_agent.lines import HOME
from edge_agent.link import Connect, Link
from edge_agent.links import Connects, Links, OnLine
from edge_agent.model import Model, setup_of
from edge_agent.outgoing import Outgoing
from edge_agent.parts import Parts
from edge_agent.post import Post
from edge_agent.records import AnswerRecord, EventRecord, Sample
from edge_agent.report import Side, report
from edge_agent.settings import AgentSettings
from edge_agent.subjects import Subjects
from edge_agent.tasks import end, pause
from edge_agent.threshold import Threshold
from edge_agent.upkeep import Upkeep
from edge_agent.vault import Vault
from edge_agent.witness import Witness
from models.manifest import Manifest
from models.runner import Runner
from policies.locality import HubSite
from policies.policy import Policy
from wire.daemon import Log, fault, name
from wire.messages import Hello
from wire.transport import Incoming

AGENT = "skerry-agent/1"
DATABASE_FILE = "agent.db"
_PAUSE_S = 1.0  # before a task that failed starts again


class Agent:
    """One device. `run()` owns every task; the other methods are called on the same event loop."""

    _database: Callable[..., Database] = Database  # those of a live simulation sync no commit

    def __init__(
        self,
        settings: AgentSettings,
        identity: Identity,
        runner: Runner | None,
        policy: Policy | None,
        connect: Connect | Connects,
        *,
        clock: HubClock | None = None,
    ) -> None:
        self._log = Log()
        self._settings = settings
        self._identity = identity
        model = Model(runner, settings.inline_infer_s)
        self._counts: Counter[str] = Counter()
        self._clock = clock or HubClock(identity.hub_time_ms)
        self._db = self._database(settings.state_dir / DATABASE_FILE)
        connect, lines = connect if isinstance(connect, Connects) else (connect, {})
        envelopes = self._envelopes = Envelopes(identity, {line: each.identity for line, each in lines.items()})
        self._core = EdgeCore(self._setup(model.form), policy)
        vault = Vault(identity.payload_key)
        self._desk = Desk(envelopes, vault, self._clock, model.form, settings.frames_cache_bytes)
        self._journal = Journal(settings, self._db, self._clock, self._counts)
        self._link = Link(identity.device, connect, settings, self._counts)
        for line, each in lines.items():
            self._link.further[line] = Link(each.identity.device, each.connect, settings, self._counts)
        self._links = Links(self._link, self._clock)
        self._parts = Parts(
            self._core, self._db, self._desk, self._journal, self._link, envelopes, self._clock, self._counts,
            Hello(0, secrets.token_hex(8), AGENT, model.refs), settings.outbox.max_age_s,
        )  # fmt: skip
        self._hands = Hands(self._parts)
        self._guard = Guard(self._parts, self._hands, settings.attributes, identity.device)
        self._witness = Witness(self._parts, self._hands.sender, identity, settings.heads_every_s)
        self.outgoing = Outgoing(self._parts, self._hands.sender)
        self._sides: list[Side] = [self._guard, self._witness, self.outgoing]
        self._upkeep = Upkeep(self._parts, self._hands, self._guard, settings)
        means = Means(self._hands, Subjects(vault), self._upkeep, self._setup, settings.inline_infer_s)
        self.answering = Answering(model, self._parts, means)
        intake = Intake(envelopes, self._desk, self._clock, self._counts)
        self._post = Post(self._parts, self._hands, (self._guard, self._witness, self.outgoing), intake, self.refresh)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._opened = False
        self.hinted: asyncio.Event | None = None  # of whoever looks for updates

    # Start and stop

    async def open(self) -> None:
        """Open the database and take up where we stopped. `run` does it too. Stop(DATABASE) if a newer one wrote it.

        A disk that allows no database is an alarm, not an end: the agent answers locally and tries again.
        """
        if self._opened:
            return
        self._opened = True
        self._journal.loop = asyncio.get_running_loop()
        self.answering.measure()
        await self._upkeep.open()

    async def run(self) -> None:
        """Link, watchdog and upkeep until `stop`. The watchdog is this very coroutine: nobody can end it alone."""
        await self.open()
        async with asyncio.TaskGroup() as group:
            links = self._links.named().items()
            works = {title: partial(link.run, OnLine(self, line)) for title, (line, link) in links}
            works["upkeep"] = partial(self._upkeep.run, self._reopened)
            while not self._stopping.is_set():
                for title, work in works.items():
                    self._revive(group, title, work)
                self._safely("watch", self._watch)
                await pause(self._stopping, self._settings.watchdog_s)
            await end(set(self._tasks.values()))
        await self._close()

    def stop(self) -> None:
        self._stopping.set()

    async def _close(self) -> None:
        self._hands.rest()
        self._journal.flush()
        self._hands.flush_marks()
        self._hands.sender.rest()
        self._witness.rest()
        self._upkeep.remember_time()
        await self._db.close()
        self.answering.close()

    # Samples

    def answer_now(self, sample: Sample) -> "AnswerRecord | asyncio.Future[AnswerRecord]":
        """The synchronous path, no await and no disk: a confident answer comes back at once, others as a future.

        SampleError if the sample does not fit the model, Disabled if the mode says so.
        """
        return self.answering.now(sample)

    async def infer(self, sample: Sample) -> AnswerRecord:
        """Answer one sample. SampleError if it does not fit the model, Disabled if the mode says so."""
        return await self.answering.later(sample)

    # Records

    async def wait(self, id: str, timeout_s: float) -> list[AnswerRecord]:  # noqa: A002 - the product's word
        """All records of an answer id; waits up to `timeout_s` while the hub still owes one. Empty: id unknown."""
        return await self._journal.wait(id, timeout_s)

    def events(self, after: int) -> AsyncIterator[EventRecord]:
        """Committed records with an event id above `after`, then each new one as it is committed. At least once."""
        return self._journal.events(after)

    async def last_event(self) -> int:
        """The newest committed record's event id, 0 if there is none: a stream from there hears only what is new."""
        return await self._journal.last_event()

    async def feedback(self, id: str, truth: float) -> bool:  # noqa: A002 - the product's word
        """Keep the true label or value of an answer. False if the id is unknown."""
        known = await self._journal.keep_truth(id, truth)
        for record in (await self._journal.of(id))[0][:1]:
            self.answering.judged(record, truth)
        return known

    async def explain(self, id: str) -> dict[str, Any]:  # noqa: A002 - the product's word
        """What is known of one answer: its records, ledger entries and outcome, JSON-able. Empty: id unknown."""
        return await self._journal.explain(id)

    async def erase(self, subject: bytes) -> int:
        """Forget whom this keyed hash stands for: its questions end, what was said goes. How many answers that was."""
        self._journal.flush()
        self._hands.obey(self._core.on_erased(self._desk.about(subject), self._clock.now()))
        self._journal.forget(subject)
        return await self._db.read(partial(answers.erase, subject=subject))

    # What people and operators decide

    def use_policy(self, policy: Policy | None) -> None:
        self._guard.expect(policy)
        self._hands.obey(self._core.on_policy(policy, self._clock.now()))

    def use_hubs(self, hubs: tuple[HubKeys, ...]) -> None:
        self._envelopes.use(hubs)
        self.answering.renew()
        self._hands.obey(self._core.on_hubs(self._sites(), self._clock.now()))

    def use_further(self, line: str, hubs: tuple[HubKeys, ...]) -> None:
        """Keys of the hubs on another line; their names stay, policies know them by these."""
        self._envelopes.on(line).use(hubs)
        self._hands.obey(self._core.on_hubs(self._sites(), self._clock.now()))

    async def use_bundle(self, runner: Runner | None) -> None:
        """Answer with this model from now on, or with none. Questions accepted before keep the model they name."""
        await self.answering.use(runner)

    def _setup(self, form: Form) -> Setup:
        return setup_of(form, self._sites(), self._envelopes, self._settings.outbox)

    def _sites(self) -> tuple[HubSite, ...]:
        """Every hub on every line, as policies see it."""
        return sites(self._envelopes.everybody(), self._settings.prices)

    @property
    def manifest(self) -> Manifest | None:
        """Of the model that answers; None while there is none."""
        model = self.answering.model
        return model.manifest if model.present else None

    def refresh(self) -> bool:
        """Look for updates soon. False if nobody here does."""
        if self.hinted is not None:
            self.hinted.set()
        return self.hinted is not None

    def count(self, kind: str) -> None:
        """Add one to a counter; `kind` is a fixed word."""
        self._counts[kind] += 1

    def assign(self, install: Install) -> None:
        """What hubs assign is installed by this one."""
        install.attach(self._parts, self.answering, self.outgoing)
        self._post.assigned = install.hear
        self._post.judged = self.answering.verdict
        self.add_side(install)

    def calibrate(self, threshold: Threshold) -> None:
        """Ask by the threshold of this device's class, while it keeps its promise."""
        self.answering.calibrate(threshold)
        self._post.judged = self.answering.verdict
        self.add_side(threshold)

    def add_side(self, side: Side) -> None:
        """What runs beside us: its facts and alarms become part of our status."""
        self._sides.append(side)

    async def reconnect(self, line: str = HOME) -> None:
        """End the connection; another is made at once, with the certificate of now. Rows wait for their outcome."""
        await self._link.on(line).drop()

    def status(self) -> dict[str, Any]:
        """JSON-able: device, epoch, model, policy, mode, link, disk, open, alarms, counts, and what the sides say."""
        manifest = self.manifest
        named = (self._identity.device, manifest.model if manifest else "")
        sides = [self.answering.model, *self._sides]
        return report(self._parts, named, self._hands.unrecorded, self._upkeep.alarms, sides)

    @property
    def counts(self) -> dict[str, int]:
        """Counters by name, for metrics; names are fixed words, never input."""
        return dict(self._counts)

    # The links' owner

    def on_up(self, line: str = HOME) -> None:
        self._links.heard(line)
        self._safely("up", lambda: self._hands.obey(self._core.on_link(True, self._clock.now(), line)))
        if line == HOME:
            for told in (self._witness, self.outgoing):
                self._safely("witness", told.connected)

    def _reopened(self) -> None:
        for line, link in self._links.named().values():
            if link.up:
                self.on_up(line)

    def on_down(self, line: str = HOME) -> None:
        self._safely("down", lambda: self._hands.obey(self._core.on_link(False, self._clock.now(), line)))

    def on_batch(self, batch: list[Incoming], line: str = HOME) -> None:
        self._links.heard(line)
        for message in batch:
            self._safely("message", partial(self._post.message, message, line))

    def on_order(self, payload: bytes, line: str = HOME) -> None:
        self._safely("order", partial(self._post.order, payload, line))

    # Staying alive

    def _safely(self, what: str, handler: Callable[[], object]) -> None:
        """The one place where anything is caught: a handler's failure ends the handler, not the task."""
        try:
            handler()
        except Exception as error:  # noqa: BLE001
            self._counts["handler_errors"] += 1
            self._log.error("handler_failed", handler=name(what), error=fault(error))

    async def _live(self, title: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except Exception as error:  # noqa: BLE001
                self._counts["task_errors"] += 1
                self._log.error("task_failed", task=name(title), error=fault(error))
            await asyncio.sleep(_PAUSE_S)

    def _revive(self, group: asyncio.TaskGroup, title: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._tasks.get(title)
        if task is not None and not task.done():
            return
        if task is not None:
            self._counts["tasks_revived"] += 1
            self._log.warning("task_revived", task=name(title))
        self._tasks[title] = group.create_task(self._live(title, work), name=f"agent-{title}")

    def _watch(self) -> None:
        if self._db.is_open and not self._db.alive:
            self._counts["writer_revived"] += 1
            self._db.revive()
        self._hands.flush_marks()
        self._guard.look()
        self._witness.watch()
        self.outgoing.watch()
        for title in self._links.silent(self._core, self._settings.silent_after_s):
            self._counts["link_silent"] += 1
            self._tasks[title].cancel()  # its successor connects anew
