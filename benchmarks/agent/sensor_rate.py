"""Benchmark: an MQTT topic at 1,000 messages a second, each a window, to the demo's net: lost, and processor time.

`python -m benchmarks.agent.sensor_rate [SECONDS]`. A Mosquitto, a publisher (this process) and a whole agent process on
one machine; processor time is the agent's alone, as the kernel counts it. Each message is JSON of 64 numbers, 8
channels of 8 steps (the demo's digits), at QoS 1; there is no hub, so that unsure answers become questions that wait.
Beside it single readings by event time, a window of eight on each of ten topics.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sklearn.datasets import load_digits

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, format_number
from benchmarks.hub.sealed import read_cpu_s
from edge_agent.system.site_broker import BrokerSection
from edge_agent.system.site_connection import SiteConnection, connect_broker
from tests.edge_agent.doubles.device import write_device
from tests.live.doubles.site_agent import read_status, running
from tests.live.doubles.site_broker import USER, SiteMosquitto

RATE = 1000
CHANNELS, STEPS = 8, 8
TOPICS = 10
KEPT = 256
SECONDS = int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdigit() else 30
LIMIT_SHARE = 50.0


class SensorLoad(NamedTuple):
    """What is published: its name, the payload of message `n`, and the lines of `[input]`."""

    name: str
    payload: Callable[[int], bytes]
    keys: str


def make_loads() -> tuple[SensorLoad, ...]:
    """A message that is a window; and one that is a reading, a hundred times a second on each of ten topics."""
    images = load_digits().images[:KEPT] / 16
    windows = [json.dumps({"v": image.T.reshape(-1).tolist()}).encode() for image in images]  # columns are steps
    readings = [step.tolist() for image in images for step in image.T]

    def reading(number: int) -> bytes:
        step = number // TOPICS
        return json.dumps({"v": readings[step % len(readings)], "t": step / (RATE / TOPICS)}).encode()

    plain = 'kind = "signal"\norder = "1ct"\n'
    return (
        SensorLoad("windows", lambda number: windows[number % KEPT], plain),
        SensorLoad("readings by event time", reading, f"{plain}rate_hz = {RATE // TOPICS}\nlateness_s = 0.05\n"),
    )


async def run_benchmark(folder: Path, bundle: Path, seconds: int = SECONDS) -> list[Figure]:
    """Share of a core, and messages that no counter knows."""
    figures: list[Figure] = []
    for number, load in enumerate(make_loads()):
        below = folder / str(number)
        below.mkdir()
        share, lost, terms = await _measure_load(load, seconds, below, bundle)
        figures += [
            Figure(f"{RATE} {load.name}/s: the agent's processor time", share, "% of a core", LIMIT_SHARE, terms=terms),
            Figure(f"{RATE} {load.name}/s: messages lost without a count", lost, "", 0),
        ]
    return figures


async def _measure_load(
    load: SensorLoad, seconds: int, folder: Path, bundle: Path
) -> tuple[float, int, tuple[str, ...]]:
    config = write_device(folder)
    with SiteMosquitto(folder) as broker:
        time_key = 'time = "t"\n' if "rate_hz" in load.keys else ""
        sensor = f'[[sensor]]\nname = "press"\ntopics = ["plant/#"]\nchannels = ["v"]\n{time_key}{broker.keys}'
        text = config.read_text().replace('bundle = "echo"', f'bundle = "{bundle}"')
        config.write_text(f"{text}\n[input]\n{load.keys}\n{sensor}")
        async with broker.client():  # once it listens
            place = BrokerSection(f"mqtt://127.0.0.1:{broker.port}", USER, str(folder / "site.password"))
            publisher = await connect_broker(place, "publisher")
        async with running(config) as agent:
            await _wait(config, lambda shown: shown["state"] == "up")
            await _publish(publisher, load, 2, 0)  # it is warm then
            before = await _wait(config, lambda shown: shown["messages"] >= 2 * RATE and not shown["waiting"])
            cpu_s = read_cpu_s(agent.pid)
            took_s = await _publish(publisher, load, seconds, 2 * RATE)
            cpu_s = read_cpu_s(agent.pid) - cpu_s
            shown = await _wait(config, lambda now: now["messages"] >= (seconds + 2) * RATE and not now["waiting"])
        await publisher.close()
    answered = shown["answered"] - before["answered"]
    unknown = shown["received"] - shown["answered"] - sum(shown["dropped"].values())
    lost = (seconds + 2) * RATE - shown["messages"] + unknown
    rate, answers = format_number(seconds * RATE / took_s), format_number(answered / took_s)
    dropped = f"dropped with a count: {sum(shown['dropped'].values())} {shown['dropped'] or ''}".strip()
    terms = (f"{rate} messages/s for {seconds} s, {answers} answers/s, {dropped}",)
    return 100 * cpu_s / took_s, lost, terms


async def _publish(publisher: SiteConnection, load: SensorLoad, seconds: int, first: int) -> float:
    """Publish `RATE` messages a second, in turns of 5 ms; returns the seconds it took, acknowledgements included."""
    loop = asyncio.get_running_loop()
    began, total, sent = loop.time(), seconds * RATE, 0
    waiting: list[asyncio.Future[Any]] = []
    while sent < total:
        due = min(total, int((loop.time() - began) * RATE) + 1)
        numbers = range(first + sent, first + due)
        waiting += [publisher.post(f"plant/{number % TOPICS}", load.payload(number)) for number in numbers]
        sent = due
        await asyncio.sleep(0.005)
    await asyncio.gather(*waiting)
    return loop.time() - began


async def _wait(config: Path, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            shown: dict[str, Any] = (await read_status(config))["sources"]["sensor-press"]
            if holds(shown):
                return shown
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
