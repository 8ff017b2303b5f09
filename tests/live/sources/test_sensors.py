"""An MQTT sensor in, answers out, through a real Mosquitto: published and read by a client that is none of ours."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.edge_agent.doubles.device import DEVICE, write_device
from tests.live.doubles.site_agent import read_status, running, until
from tests.live.doubles.site_broker import Heard, SiteMosquitto

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
