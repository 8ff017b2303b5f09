"""The ledger over real processes: what left is what the sockets sent, and others check it with the commands alone."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness, find_free_port
from tests.blocks import environment
from tests.live.doubles.fleet import QUICK, burst, policy, samples, settle

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
SKERRY = Path(sys.executable).parent / "skerry"


@dataclass
class Scales:
    """A wire between the agent and the broker that weighs what the agent sends; it sees TLS records, nothing else."""

    broker_port: int
    port: int = field(default_factory=find_free_port)
    sent: int = 0
    wires: set[asyncio.StreamWriter] = field(default_factory=set)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", self.broker_port)
        self.wires |= {writer, there}
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._carry(reader, there, weigh=True), self._carry(there_reader, writer, weigh=False))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, weigh: bool) -> None:
        while data := await source.read(65536):
            self.sent += len(data) if weigh else 0
            sink.write(data)
            await sink.drain()
        sink.close()

    def cut(self) -> None:
        """Every connection ends in the middle of whatever it is at."""
        for wire in self.wires:
            wire.transport.abort()
        self.wires.clear()


@contextlib.asynccontextmanager
async def weighed(broker_port: int) -> AsyncIterator[Scales]:
    scales = Scales(broker_port)
    server = await asyncio.start_server(scales._accept, "127.0.0.1", scales.port)
    try:
        yield scales
    finally:
        server.close()
        scales.cut()


async def skerry(folder: Path, *words: str, code: int = 0) -> str:
    """A command as a person types it; what it printed."""
    command = [str(SKERRY), *words]
    done = await asyncio.create_subprocess_exec(
        *command, env=environment(folder), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said = (await done.communicate())[0].decode()
    assert done.returncode == code, (words, said)
    return said


def through(agent: AgentHandle, port: int) -> None:
    """The agent's broker is at this port from now on."""
    card = agent.folder / "identity.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "broker_port": port}))


async def shown(agent: AgentHandle) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        await skerry(agent.folder, "ledger", "show", "--dir", str(agent.folder), "--json")
    )
    return found


async def test_bytes_by_rule_and_overhead_are_what_left_the_machine_also_over_cut_lines(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    hub = await stage.start_hub(bundle.path)
    async with weighed(hub.broker_port) as scales:
        agent = await stage.add_agent("a", bundle.path, policy(tmp_path), QUICK)
        through(agent, scales.port)
        await stage.start_agent(agent)
        await burst(stage, agent, bundle, samples(60))
        await settle(stage)
        weighed_now, sent = scales.sent, (await stage.fetch_status(agent))["sent"]
        assert sum(sent["by_rule"].values()) + sent["overhead"] == sent["sockets"]
        assert sent["sockets"] == weighed_now, "the kernel counted what came through the wire"
        assert sent["by_rule"]["live@1"] > 60 * 300
        for _ in range(2):
            feeding = asyncio.create_task(burst(stage, agent, bundle, samples(60)))
            await asyncio.sleep(0.2)
            scales.cut()
            await feeding
            await stage.wait_for(agent, lambda status: status["link"] == "up", "no link")
        await settle(stage)
        async with stage.session.get(f"{agent.url}/metrics") as response:
            metrics = await response.text()
        assert 'skerry_agent_sent_bytes_total{rule="overhead"}' in metrics
        await agent.child.stop()
        report = await shown(agent)
    by_rule = {row["key"]: row["bytes"] for row in report["rows"]}
    assert set(by_rule) == {"live@1", "protocol"}
    assert sum(by_rule.values()) + report["overhead"] == report["sockets"]
    # what a cut left in a buffer was sent by nobody and is counted by the kernel alone, or by the wire alone
    assert abs(report["sockets"] - scales.sent) <= 64 * 1024
    assert 0 < report["overhead"] < report["sockets"] / 2


async def test_what_left_is_shown_verified_and_proved_to_others_with_the_commands_alone(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    hub = await stage.start_hub(bundle.path)
    agent = await stage.add_agent("a", bundle.path, policy(tmp_path), QUICK)
    await stage.start_agent(agent)
    await burst(stage, agent, bundle, samples(30))
    await settle(stage)
    await asyncio.sleep(3.0)  # the span that is proved ends a second before the newest head, the questions before that
    await agent.child.stop()
    await stage.start_agent(agent)  # says another head: the ledger up to here is witnessed
    await stage.wait_for(agent, lambda s: s["ledger"].get("witnessed", 0) > 30, "not witnessed")
    where, elsewhere = ("--dir", str(agent.folder)), tmp_path / "auditor"
    elsewhere.mkdir()
    assert "live@1" in await skerry(tmp_path, "ledger", "show", *where)
    assert "the ledger is whole" in await skerry(tmp_path, "ledger", "verify", *where)
    heads, proof = str(elsewhere / "heads.json"), str(elsewhere / "proof.json")
    config = str(hub.folder.parent / "hub.toml")
    told = await skerry(tmp_path, "devices", "heads", agent.device, "--config", config, "-o", heads)
    key = told.split()[-1]
    assert "are of this ledger" in await skerry(tmp_path, "ledger", "verify", *where, "--heads", heads)
    newest = (await stage.fetch_status(agent))["ledger"]["at_ms"]
    until = f"{newest // 1000 - 1}"
    span = ("--from", "7d", "--to", _iso(int(until)), "-o", proof)
    await skerry(tmp_path, "ledger", "prove", "--no-field-above", "P1", *span, *where, code=40)
    await skerry(tmp_path, "ledger", "prove", "--no-field-above", "P2", "--region", "local", *span, *where)
    await stage.stop()
    said = await skerry(elsewhere, "ledger", "check", proof, "--hub-key", key)
    assert "witnessed by a hub" in said
    await skerry(elsewhere, "ledger", "check", proof, "--hub-key", "00" * 32, code=40)
    text = Path(proof).read_text()
    Path(proof).write_text(text.replace('"features": "P2"', '"features": "P1"'))
    await skerry(elsewhere, "ledger", "check", proof, "--hub-key", key, code=40)


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
