"""An MQTT sensor in, answers out, through a real Mosquitto: published and read by a client that is none of ours."""

import asyncio
import json
from pathlib import Path

import pytest

from edge_agent.sources.sensor_settings import SensorSection
from edge_agent.system.site_broker import connect_broker
from tests.edge_agent.doubles.device import DEVICE, write_device
from tests.live.doubles.site_agent import read_status, running, until
from tests.live.doubles.site_broker import USER, Heard, SiteMosquitto
from wire.transport.base import IncomingMessage

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
TOPIC = f"site/{DEVICE}/open/0"


async def test_readings_of_a_sensor_become_windows_answers_and_messages_over_a_broker_that_comes_and_goes(
    tmp_path: Path,
):
    config = write_device(tmp_path)
    with SiteMosquitto(tmp_path) as broker:
        sensor = f'\n[[sensor]]\nname = "plant"\ntopics = ["plant/+"]\nchannels = ["v"]\ntime = "t"\n{broker.keys}'
        topic = 'topic = "site/{device}/{data_class}/{label}"'
        output = f'\n[[output]]\nname = "site"\nkind = "mqtt"\n{topic}\n{broker.keys}'
        signal = '\n[input]\nkind = "signal"\norder = "t"\nrate_hz = 10\n'
        config.write_text(config.read_text() + signal + sensor + output)
        async with running(config):
            async with broker.client() as client:
                heard = Heard()
                listening = asyncio.create_task(heard.listen(client))
                await until_up(config)
                for step in range(20):
                    reading = {"v": float(step % 10 == 0), "t": step / 10}
                    await client.publish("plant/1", json.dumps(reading), qos=1)
                for broken in (b"", b"{", b'{"v": "x"}', b"\xff"):
                    await client.publish("plant/1", broken, qos=1)
                await until(lambda: len(heard.of(TOPIC)) == 2)
                counts = (await read_status(config))["sources"]["sensor-plant"]
                assert (counts["messages"], counts["answered"], counts["dropped"]) == (24, 2, {"garbled": 4})
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
            broker.stop()
            await asyncio.sleep(0)
            broker.start()
            async with broker.client() as client:
                heard = Heard()
                listening = asyncio.create_task(heard.listen(client))
                await until_up(config, restarts=1)
                for step in range(20, 30):
                    await client.publish("plant/1", json.dumps({"v": float(step == 20), "t": step / 10}), qos=1)
                await until(lambda: len(heard.of(TOPIC)) == 1)
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)


async def until_up(config: Path, restarts: int = 0) -> None:
    async with asyncio.timeout(90):
        while True:
            sensor = (await read_status(config))["sources"]["sensor-plant"]
            if sensor["state"] == "up" and sensor["restarts"] >= restarts:
                return
            await asyncio.sleep(0.05)


async def test_what_the_broker_has_kept_is_not_handed_on_unless_it_is_asked_for(tmp_path: Path):
    with SiteMosquitto(tmp_path) as broker:
        section = SensorSection(
            name="plant", topics=("plant/#",), broker=f"mqtt://127.0.0.1:{broker.port}", username=USER,
            password_file=str(tmp_path / "site.password"),
        )  # fmt: skip
        async with broker.client() as client:
            await client.publish("plant/1", b"old", qos=1, retain=True)
            for wanted in (False, True):
                transport = await connect_broker(section, "skerry-test", wants_retained=wanted)
                await transport.subscribe(section.topics)
                await client.publish("plant/1", b"new", qos=1)
                found: list[IncomingMessage] = []
                while not found or found[-1].payload != b"new":
                    found += await transport.receive()
                assert [each.payload for each in found if each.retained] == ([b"old"] if wanted else [])
                assert not found[-1].retained
                await transport.close()
