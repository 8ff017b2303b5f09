"""Benchmark: hub intake over MQTT and TLS: sealed 1 KB questions verified, opened, stored and receipted per second.

`python -m benchmarks.intake.mqtt`. One hub process; broker, hub and senders share the machine's cores. Questions are
sealed beforehand; each device keeps a window of 32.
"""

import asyncio
import secrets
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.harness.benchmark import alone
from benchmarks.harness.figures import Figure, shown
from benchmarks.harness.questions import Sender, frames, send
from benchmarks.harness.rig import Rig, child, said
from edge_agent.identity.identity import Identity
from wire.protocol.topics import Channel, topic
from wire.transport.mqtt import MqttTransport

DEVICES = 8
EACH = 1500
ROUNDS = 3
LIMIT = 2500.0


async def run(folder: Path, bundle: Path) -> list[Figure]:
    async with Rig(folder, bundle) as rig:
        async with rig.hub():
            devices = await rig.devices(DEVICES)
        rates, size = await _rounds(rig, devices, "parked", ROUNDS)
        whole, _ = await _rounds(rig, devices, "echo", 1)
    terms = (
        f"{DEVICES} devices x {EACH} questions of {size} bytes, window 32 each; rounds: {', '.join(map(shown, rates))}",
        f"with a model that answers at once, verdicts sealed and stored too: {shown(whole[0])} questions/s answered",
    )
    name = "hub intake, sealed 1 KB questions over MQTT and TLS"
    return [Figure(name, median(rates), "messages/s", LIMIT, more_is_better=True, terms=terms)]


async def _rounds(rig: Rig, devices: list[Identity], kind: str, rounds: int) -> tuple[list[float], int]:
    """(messages per second of each round, bytes of a frame)."""
    rates, size = [], 0
    words = (str(rig.state.root), *rig.as_hub, kind)
    async with child("benchmarks.intake.hub", *words, log=rig.folder / "intake.log") as hub:
        await said(hub)
        for _ in range(rounds):
            senders = [await _sender(rig, device) for device in devices]
            size = len(senders[0].frames[0])
            began = time.perf_counter()
            done = sum(await asyncio.gather(*map(send, senders)))
            rates.append(done / (time.perf_counter() - began))
            for sender in senders:
                await sender.link.close()
    return rates, size


async def _sender(rig: Rig, identity: Identity) -> Sender:
    sealed = frames(identity, secrets.randbits(63), EACH)
    link = await MqttTransport.connect("127.0.0.1", rig.broker.port, identity.device, identity.tls())
    await link.subscribe((topic(identity.device, Channel.REPLY),))
    return Sender(identity, link, sealed)


if __name__ == "__main__":
    sys.exit(alone(run))
