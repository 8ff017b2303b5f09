"""The five acts of `skerry demo` in order, and the figures shown at its end.

Rule: everything shown is measured on the running processes or read from their records; the figures put what clients saw
beside what the databases of both sides prove.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from models.bundle.bundle import Bundle
from simulations.checking.databases import judge_run
from simulations.demo import screen
from simulations.demo.client import DemoClient, Digit, load_digits
from simulations.demo.results import (
    AnswerTally,
    ClientAnswer,
    compute_accuracy,
    compute_latency,
    count_answers,
    count_doubled_corrections,
    summarize_outage,
)
from simulations.processes import AgentHandle, ProcessHarness

AGENTS = ("camera-1", "camera-2", "kiosk-1", "kiosk-2", "lab-1")
POLICY = Path(__file__).with_name("policy.toml")
EVERY_S = 0.12  # per agent: five agents ask about forty digits a second
OUTAGE_AFTER = 0.3  # share of the digits that have been fed when the broker dies
OUTAGE_S = 2.0
SETTLE_TIMEOUT_S = 60.0
_REFRESH_S = 0.25


@dataclass
class DemoPlay:
    """One run of the demo.

    `began` is the start of the command, so that the first answer's time counts the training too.
    """

    console: Console
    stage: ProcessHarness
    bundle: Bundle
    began: float
    tally: AnswerTally = field(default_factory=AnswerTally)
    status: dict[str, dict[str, Any]] = field(default_factory=dict)
    broker_killed_at_s: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        self.client = DemoClient(self.stage.session, self.tally, self.bundle.manifest, self.began)

    async def run(self) -> None:
        """Run all acts; a task per event stream lives as long as the play."""
        found = await load_digits(self.stage, self.bundle)
        async with run_background(self.client.follow_events(agent) for agent in self.stage.agents):
            rest = await self._first_three_acts(found)
            with Live(self._render_table(), console=self.console, refresh_per_second=4, transient=False) as live:
                async with run_background([self._refresh_table(live)]):
                    await self._fourth_act(rest)
                    await self._poll_agents()
                live.update(self._render_table())
            self._show_outage()
            await self._fifth_act()

    async def _first_three_acts(self, found: list[Digit]) -> list[Digit]:
        """Feed digits until a confident and a doubtful answer were seen; send the doubtful one again as `private`."""
        agent = self.stage.agents[0]
        shown: dict[str, tuple[str, ClientAnswer]] = {}
        rest = list(found)
        doubtful: Digit | None = None
        while rest and not {"local", "hub"} <= shown.keys():
            digit = rest.pop(0)
            answer_id, seen = await self.client.ask(agent, digit)
            shown.setdefault(seen.source, (answer_id, seen))
            doubtful = digit if seen.source == "hub" else doubtful
        self._show_act(1, "A confident answer stays on the device", shown.get("local"))
        self._show_act(2, "A doubtful one is asked of the hub, features only, sealed", shown.get("hub"))
        if doubtful is not None:
            private = await self.client.ask(agent, doubtful, data_class="private")
            self._show_act(3, "The same digit labelled private: policy keeps it here", private)
        return rest

    def _show_act(self, number: int, title: str, answer: tuple[str, ClientAnswer] | None) -> None:
        if answer is None:
            screen.show_act(self.console, number, title, "[red]did not happen in this run")
            return
        answer_id, seen = answer
        right = "right" if seen.label == seen.truth.label else "wrong"
        screen.show_act(
            self.console,
            number,
            title,
            f"{seen.agent}: digit {seen.label} ({right}; the device alone says {seen.truth.edge_label})  "
            f"source [bold]{seen.source}[/], reason [bold]{seen.why}[/], {seen.latency_ms:.1f} ms\nid {answer_id}",
        )

    async def _fourth_act(self, rest: list[Digit]) -> None:
        """Feed digits to every agent at once; in the middle of it the broker is killed."""
        queues = [rest[i :: len(self.stage.agents)] for i in range(len(self.stage.agents))]
        longest = max(map(len, queues))
        async with asyncio.TaskGroup() as group:
            for agent, queue in zip(self.stage.agents, queues, strict=True):
                group.create_task(self._feed_agent(agent, queue), name=f"feed-{agent.name}")
            group.create_task(self._kill_broker(longest * EVERY_S * OUTAGE_AFTER), name="kill-broker")
        self.note = "waiting for the last late answers"
        await self._wait_settled()
        self.note = ""

    async def _feed_agent(self, agent: AgentHandle, queue: list[Digit]) -> None:
        for digit in queue:
            started = time.monotonic()
            answer_id, _ = await self.client.ask(agent, digit)
            if self._in_outage(started):
                self.tally.outage_ids.add(answer_id)
            await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - started)))

    def _in_outage(self, at: float) -> bool:
        if self.broker_killed_at_s is None:
            return False
        since = at - self.began - self.broker_killed_at_s
        return 0 <= since < OUTAGE_S

    async def _kill_broker(self, after_s: float) -> None:
        """Kill the broker with SIGKILL, again whenever the hub restarts it, until the outage lasted long enough."""
        await asyncio.sleep(after_s)
        self.broker_killed_at_s = round(time.monotonic() - self.began, 2)
        self.note = "kill -9 of the broker: questions wait in each device's outbox"
        end = time.monotonic() + OUTAGE_S
        while time.monotonic() < end:
            pid = self.stage.broker_pid()
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)
        self.note = "the hub starts its broker again; late answers come in"

    async def _wait_settled(self) -> None:
        """Wait until no agent has an open question."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < deadline:
            await self._poll_agents()
            if not any(status["open"] for status in self.status.values()):
                return
            await asyncio.sleep(_REFRESH_S)

    def _show_outage(self) -> None:
        told = summarize_outage(self.tally)
        body = (
            f"{len(self.tally.outage_ids)} digits came while the broker was dead; {told['asked']} were doubtful and "
            "were answered at once by the device.\n"
            f"Late hub answers delivered as corrections: [bold]{told['late']}[/], "
            f"in time after all: {told['in_time']}, delivered twice: [bold]{told['twice']}[/]"
        )
        screen.show_act(self.console, 4, "The broker killed with kill -9 while samples go on", body)

    async def _fifth_act(self) -> None:
        """Run `skerry why` on a corrected answer and print its output as it is."""
        answer_id = self._most_telling()
        agent = next(a for a in self.stage.agents if a.name == self.tally.seen[answer_id].agent)
        command = ["why", answer_id, "--url", agent.url]
        screen.show_act(self.console, 5, "Any answer explains itself", f"$ skerry {' '.join(command)}")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "skerry", *command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        self.console.print(said.decode().rstrip(), highlight=False, markup=False)

    def _most_telling(self) -> str:
        """Id of an answer that a late verdict changed; else one that was corrected at all; else any."""
        seen = self.tally.seen
        changed = [i for i, s in seen.items() if s.corrected_label not in (None, s.label)]
        return next(iter(changed or [i for i, s in seen.items() if s.corrections] or seen))

    async def _refresh_table(self, live: Live) -> None:
        while True:
            await self._poll_agents()
            live.update(self._render_table())
            await asyncio.sleep(_REFRESH_S)

    async def _poll_agents(self) -> None:
        for agent in self.stage.agents:
            self.status[agent.name] = _select_status(await self.stage.fetch_status(agent))

    def _render_table(self) -> Any:
        return screen.render_live(self.tally, self.status, self.note)


def _select_status(status: dict[str, Any]) -> dict[str, Any]:
    """What the live table needs of an agent's status."""
    counts = status.get("counts", {})
    return {
        "open": status["open"],
        "queued": status["open"],
        "refused": counts.get("outcome_refused", 0),
        "bytes_sent": counts.get("sent_bytes", 0),
    }


@contextlib.asynccontextmanager
async def run_background(jobs: Any) -> AsyncIterator[None]:
    """Run tasks as long as the block; the first that fails ends it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def collect_figures(play: DemoPlay, stage: ProcessHarness) -> dict[str, Any]:
    """Figures of the demo as one JSON object: `skerry demo --json` writes it, the summary shows it.

    `lost`, `doubled`: of the record, by the history checker over every agent.db and the hub's database.
    `bytes.sent`: every byte the agents published (questions, repeats, asks, hellos). `bytes.raw`: the samples as
    the agents got them.
    """
    seen = list(play.tally.seen.values())
    report = judge_run([agent.database for agent in stage.agents], stage.hub.database if stage.hub else None)
    first = play.tally.first_escalated_at_s
    return {
        "agents": len(stage.agents),
        "answers": {**count_answers(seen), "refused": report.refused, "expired": report.expired},
        "accuracy": {name: round(value, 4) for name, value in compute_accuracy(seen).items()},
        "bytes": {
            "sent": sum(int(status["bytes_sent"]) for status in play.status.values()),
            "raw": sum(s.truth.raw_bytes for s in seen),
        },
        "latency_ms": compute_latency(seen),
        "lost": report.lost,
        "doubled": report.doubled + count_doubled_corrections(seen),
        "broker_killed_at_s": play.broker_killed_at_s,
        "first_escalated_answer_s": None if first is None else round(first, 2),
        "seconds": round(time.monotonic() - play.began, 1),
    }
