"""Benchmark: the same model over MQTT, sealed and stored, beside the same hub's HTTP.

`python -m benchmarks.hub.sealed`. Questions are sealed beforehand, as HTTP bodies are written beforehand; broker, hub
and devices share the machine's cores. Eight devices have their window of 32 under way, as devices do; with 32 questions
under way in all, as the web's 32 clients have, two commits one after the other are in every round.
"""

import asyncio
import json
import secrets
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import US, Figure, format_number
from benchmarks.harness.questions import PADDED_BYTES, WINDOW, QuestionSender, seal_questions
from benchmarks.harness.rig import BenchmarkRig, read_line, run_child
from benchmarks.harness.terms import build_verdict_plaintext, time_commit_us, time_sealing
from benchmarks.hub.engines import CARD
from benchmarks.hub.load import HttpTarget, run_closed_loop
from benchmarks.hub.peers import CLIENTS, V2
from edge_agent.identity.identity import Identity
from wire.protocol.codec import split_frame
from wire.protocol.messages import CipherSuite
from wire.protocol.topics import TopicChannel, build_topic
from wire.transport.mqtt import MqttTransport

DEVICES, EACH, ROUNDS, SECONDS = 8, 800, 3, 4.0
SHARE = 60.0
_SCHEDULED = 2  # which of a process's three CPU clocks


class CpuSpent(NamedTuple):
    """Answers a second, and seconds of CPU of hub and broker for each answer."""

    per_s: float
    hub_s: float
    broker_s: float


def read_cpu_s(pid: int) -> float:
    """Processor time of a process so far, all its threads, to the nanosecond: clock_getcpuclockid(3) of Linux.

    `/proc` counts in hundredths of a second, a fifteenth of what sixty questions take.
    """
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    http: list[CpuSpent] = []
    mqtt: list[CpuSpent] = []
    few: list[CpuSpent] = []
    async with BenchmarkRig(folder, bundle) as rig:
        async with rig.run_hub():
            devices = await rig.enrol_devices(DEVICES)
        words = (str(rig.state.root), *rig.as_hub)
        async with run_child("benchmarks.hub.server", *words, log=folder / "hub.log") as hub:
            url = f"{await read_line(hub)}/v2/models/{CARD.ref.name}/infer"
            for _ in range(ROUNDS):
                http.append(await measure_http(HttpTarget(url, json.dumps(V2).encode()), hub.pid))
                mqtt.append(await measure_mqtt(rig, devices, hub.pid, WINDOW))
                few.append(await measure_mqtt(rig, devices, hub.pid, CLIENTS // DEVICES))
        parts = _format_parts(folder)
    over, ours = median(each.per_s for each in http), median(each.per_s for each in mqtt)
    fewer = format_number(median(each.per_s for each in few))
    terms = (
        f"{format_number(ours)} verdicts/s with {DEVICES} x {WINDOW} under way, {fewer} with {CLIENTS} in all",
        f"{format_number(over)} HTTP answers/s with {CLIENTS} clients",
        *(_format_cost("HTTP", http), _format_cost("MQTT", mqtt), parts),
    )
    name = "sealed over MQTT, of the same hub's HTTP figure"
    return [Figure(name, ours / over * 100, "%", SHARE, more_is_better=True, terms=terms)]


async def measure_http(target: HttpTarget, pid: int) -> CpuSpent:
    before = read_cpu_s(pid)
    seen = await run_closed_loop(target, CLIENTS, SECONDS, warm_s=0.0)
    return CpuSpent(seen.per_s, (read_cpu_s(pid) - before) / len(seen.taken), 0.0)


async def measure_mqtt(rig: BenchmarkRig, devices: list[Identity], pid: int, window: int, each: int = EACH) -> CpuSpent:
    """`each`: questions of each device; `window`: of these under way at once."""
    senders = [await _connect_sender(rig, device, each) for device in devices]
    broker = rig.broker.pid or 0
    before, began = (read_cpu_s(pid), read_cpu_s(broker)), time.perf_counter()
    done = sum(await asyncio.gather(*(_ask_all(sender, window) for sender in senders)))
    took = time.perf_counter() - began
    spent = (read_cpu_s(pid) - before[0]) / done, (read_cpu_s(broker) - before[1]) / done
    for sender in senders:
        await sender.link.close()
    return CpuSpent(done / took, *spent)


async def _connect_sender(rig: BenchmarkRig, identity: Identity, each: int) -> QuestionSender:
    asked = seal_questions(identity, secrets.randbits(63), each)
    link = await MqttTransport.connect("127.0.0.1", rig.broker.port, identity.device, identity.tls_context())
    await link.subscribe((build_topic(identity.device, TopicChannel.REPLY),))
    return QuestionSender(identity, link, asked)


async def _ask_all(sender: QuestionSender, window: int) -> int:
    """Closed loop: `window` questions without a verdict at once."""
    up, posted, answered = build_topic(sender.identity.device, TopicChannel.QUESTION), 0, set[int]()
    while len(answered) < len(sender.frames):
        while posted < len(sender.frames) and posted - len(answered) < window:
            sender.link.post(up, sender.frames[posted])
            posted += 1
        for message in await asyncio.wait_for(sender.link.receive(), 20):
            frame = split_frame(message.payload)
            if frame.suite is CipherSuite.SEALED:
                answered.add(frame.header.seq)
    return len(answered)


def _format_cost(name: str, spent: list[CpuSpent]) -> str:
    hub, broker = (median(each[at] for each in spent) * US for at in (1, 2))
    return f"CPU for each answer over {name}: hub {format_number(hub)} us" + (
        f", broker {format_number(broker)} us" if broker else ""
    )


def _format_parts(folder: Path) -> str:
    question, verdict = (
        time_sealing(bytes(PADDED_BYTES), TopicChannel.QUESTION),
        time_sealing(build_verdict_plaintext(2), TopicChannel.REPLY),
    )
    return (
        f"of the hub's: verify and open a question {format_number(question.in_us)} us, seal and sign a verdict "
        f"{format_number(verdict.out_us)} us; "
        f"a durable commit, shared by those who wait, {format_number(time_commit_us(folder))} us"
    )


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
