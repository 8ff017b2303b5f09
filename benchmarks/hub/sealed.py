"""Benchmark: the same model over MQTT, sealed and stored, beside the same hub's HTTP.

`python -m benchmarks.hub.sealed`. Questions are sealed beforehand, as HTTP bodies are written beforehand; broker, hub
and devices share the machine's cores. Eight devices have their window of 32 under way, as devices do; with 32 questions
under way in all, as the web's 32 clients have, two commits one after the other are in every round.
"""

import asyncio
import json
import os
import secrets
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.harness.benchmark import alone
from benchmarks.harness.figures import US, Figure, shown
from benchmarks.harness.questions import PADDED_BYTES, WINDOW, Sender, frames
from benchmarks.harness.rig import Rig, child, said
from benchmarks.harness.terms import commit_us, sealed, verdict_plaintext
from benchmarks.hub.engines import CARD
from benchmarks.hub.load import Target, load
from benchmarks.hub.peers import CLIENTS, V2
from edge_agent.identity.identity import Identity
from wire.protocol.codec import split
from wire.protocol.messages import Suite
from wire.protocol.topics import Channel, topic
from wire.transport.mqtt import MqttTransport

DEVICES, EACH, ROUNDS, SECONDS = 8, 800, 3, 4.0
SHARE = 60.0


class Spent(NamedTuple):
    """Answers a second, and seconds of CPU of hub and broker for each answer."""

    per_s: float
    hub_s: float
    broker_s: float


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    found = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK")


async def run(folder: Path, bundle: Path) -> list[Figure]:
    http: list[Spent] = []
    mqtt: list[Spent] = []
    few: list[Spent] = []
    async with Rig(folder, bundle) as rig:
        async with rig.hub():
            devices = await rig.devices(DEVICES)
        words = (str(rig.state.root), *rig.as_hub)
        async with child("benchmarks.hub.server", *words, log=folder / "hub.log") as hub:
            url = f"{await said(hub)}/v2/models/{CARD.ref.name}/infer"
            for _ in range(ROUNDS):
                http.append(await _http(Target(url, json.dumps(V2).encode()), hub.pid))
                mqtt.append(await _mqtt(rig, devices, hub.pid, WINDOW))
                few.append(await _mqtt(rig, devices, hub.pid, CLIENTS // DEVICES))
        parts = _parts(folder)
    over, ours = median(each.per_s for each in http), median(each.per_s for each in mqtt)
    fewer = shown(median(each.per_s for each in few))
    terms = (
        f"{shown(ours)} verdicts/s with {DEVICES} x {WINDOW} under way, {fewer} with {CLIENTS} in all",
        f"{shown(over)} HTTP answers/s with {CLIENTS} clients",
        *(_cost("HTTP", http), _cost("MQTT", mqtt), parts),
    )
    name = "sealed over MQTT, of the same hub's HTTP figure"
    return [Figure(name, ours / over * 100, "%", SHARE, more_is_better=True, terms=terms)]


async def _http(target: Target, pid: int) -> Spent:
    before = cpu_s(pid)
    seen = await load(target, CLIENTS, SECONDS, warm_s=0.0)
    return Spent(seen.per_s, (cpu_s(pid) - before) / len(seen.taken), 0.0)


async def _mqtt(rig: Rig, devices: list[Identity], pid: int, window: int) -> Spent:
    senders = [await _sender(rig, device) for device in devices]
    broker = rig.broker.pid or 0
    before, began = (cpu_s(pid), cpu_s(broker)), time.perf_counter()
    done = sum(await asyncio.gather(*(_ask(sender, window) for sender in senders)))
    took = time.perf_counter() - began
    spent = (cpu_s(pid) - before[0]) / done, (cpu_s(broker) - before[1]) / done
    for sender in senders:
        await sender.link.close()
    return Spent(done / took, *spent)


async def _sender(rig: Rig, identity: Identity) -> Sender:
    asked = frames(identity, secrets.randbits(63), EACH)
    link = await MqttTransport.connect("127.0.0.1", rig.broker.port, identity.device, identity.tls())
    await link.subscribe((topic(identity.device, Channel.REPLY),))
    return Sender(identity, link, asked)


async def _ask(sender: Sender, window: int) -> int:
    """Closed loop: `window` questions without a verdict at once."""
    up, posted, answered = topic(sender.identity.device, Channel.QUESTION), 0, set[int]()
    while len(answered) < len(sender.frames):
        while posted < len(sender.frames) and posted - len(answered) < window:
            sender.link.post(up, sender.frames[posted])
            posted += 1
        for message in await asyncio.wait_for(sender.link.receive(), 20):
            frame = split(message.payload)
            if frame.suite is Suite.SEALED:
                answered.add(frame.header.seq)
    return len(answered)


def _cost(name: str, spent: list[Spent]) -> str:
    hub, broker = (median(each[at] for each in spent) * US for at in (1, 2))
    return f"CPU for each answer over {name}: hub {shown(hub)} us" + (f", broker {shown(broker)} us" if broker else "")


def _parts(folder: Path) -> str:
    question, verdict = sealed(bytes(PADDED_BYTES), Channel.QUESTION), sealed(verdict_plaintext(2), Channel.REPLY)
    return (
        f"of the hub's: verify and open a question {shown(question.in_us)} us, seal and sign a verdict "
        f"{shown(verdict.out_us)} us; a durable commit, shared by those who wait, {shown(commit_us(folder))} us"
    )


if __name__ == "__main__":
    sys.exit(alone(run))
