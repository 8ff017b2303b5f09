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

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, format_number
from benchmarks.harness.questions import QuestionSender, seal_questions, send_questions
from benchmarks.harness.rig import BenchmarkRig, read_line, run_child
from edge_agent.identity.identity import Identity
from wire.protocol.topics import TopicChannel, build_topic
from wire.transport.mqtt import MqttTransport

DEVICES = 8
EACH = 1500
ROUNDS = 3
LIMIT = 2500.0


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    async with BenchmarkRig(folder, bundle) as rig:
        async with rig.run_hub():
            devices = await rig.enrol_devices(DEVICES)
        rates, size = await _run_rounds(rig, devices, "parked", ROUNDS)
        whole, _ = await _run_rounds(rig, devices, "echo", 1)
    terms = (
        f"{DEVICES} devices x {EACH} questions of {size} bytes, window 32 each; "
        f"rounds: {', '.join(map(format_number, rates))}",
        f"with a model that answers at once, verdicts sealed and stored too: "
        f"{format_number(whole[0])} questions/s answered",
    )
    name = "hub intake, sealed 1 KB questions over MQTT and TLS"
    return [Figure(name, median(rates), "messages/s", LIMIT, more_is_better=True, terms=terms)]


async def _run_rounds(rig: BenchmarkRig, devices: list[Identity], kind: str, rounds: int) -> tuple[list[float], int]:
    """(messages per second of each round, bytes of a frame)."""
    rates, size = [], 0
    words = (str(rig.state.root), *rig.as_hub, kind)
    async with run_child("benchmarks.intake.hub", *words, log=rig.folder / "intake.log") as hub:
        await read_line(hub)
        for _ in range(rounds):
            senders = [await _connect_sender(rig, device) for device in devices]
            size = len(senders[0].frames[0])
            began = time.perf_counter()
            done = sum(await asyncio.gather(*map(send_questions, senders)))
            rates.append(done / (time.perf_counter() - began))
            for sender in senders:
                await sender.link.close()
    return rates, size


async def _connect_sender(rig: BenchmarkRig, identity: Identity) -> QuestionSender:
    sealed = seal_questions(identity, secrets.randbits(63), EACH)
    link = await MqttTransport.connect("127.0.0.1", rig.broker.port, identity.device, identity.tls_context())
    await link.subscribe((build_topic(identity.device, TopicChannel.REPLY),))
    return QuestionSender(identity, link, sealed)


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
