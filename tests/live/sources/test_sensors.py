"""An MQTT sensor in, answers out, through a real Mosquitto: published and read by a client that is none of ours."""

import asyncio
import contextlib
import json
import re
import shutil
import time
from pathlib import Path

import pytest

from edge_agent.sources.sensor_settings import SensorSection
from edge_agent.system.site_connection import connect_broker
from tests.edge_agent.doubles.device import DEVICE, write_device
from tests.live.doubles.proxy import proxied
from tests.live.doubles.site_agent import read_status, running, until
from tests.live.doubles.site_broker import USER, Heard, SiteMosquitto
from wire.transport.base import IncomingMessage, LinkLostError

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


SENSOR = '\n[[sensor]]\nname = "plant"\ntopics = ["plant/+"]\n'
OUTPUT = '\n[[output]]\nname = "site"\nkind = "mqtt"\ntopic = "site/{device}"\n'
SIGNAL = '\n[input]\nkind = "signal"\norder = "flat"\n'
WINDOW = json.dumps([1.0] + [0.0] * 9)  # of the model's ten values: an answer a message


async def test_a_reading_that_the_broker_has_kept_is_answered_at_the_first_connection_and_at_no_later_one(
    tmp_path: Path,
):
    config = write_device(tmp_path)
    with SiteMosquitto(tmp_path) as broker:
        async with proxied(broker.port) as line, broker.client() as client:
            await client.publish("plant/1", WINDOW, qos=1, retain=True)
            keys = broker.keys.replace(str(broker.port), str(line.port))
            config.write_text(config.read_text() + SIGNAL + SENSOR + "retained = true\n" + keys)
            async with running(config):
                await until_counted(config, answered=1)
                for restarts in (1, 2):
                    line.cut()
                    line.mend()
                    await until_up(config, restarts)
                await client.publish("plant/1", WINDOW, qos=1)  # new; the broker sends it after what it has kept
                await until_counted(config, answered=2)
                sensor = (await read_status(config))["sources"]["sensor-plant"]
    assert (sensor["messages"], sensor["answered"], sensor["dropped"]) == (2, 2, {})


async def test_two_devices_of_one_name_share_a_sites_broker_and_neither_takes_the_other_over(tmp_path: Path):
    with SiteMosquitto(tmp_path) as broker:
        configs = []
        for name in ("one", "two"):  # each enrolled with a hub of its own: the same id, another key
            (tmp_path / name).mkdir()
            config = write_device(tmp_path / name)
            shutil.copy(tmp_path / "site.password", tmp_path / name / "site.password")
            config.write_text(config.read_text() + SIGNAL + SENSOR + broker.keys + OUTPUT + broker.keys)
            configs.append(config)
        async with running(configs[0]), running(configs[1]), broker.client() as client:
            for config in configs:
                await until_up(config)
            for _ in range(20):
                await client.publish("plant/1", WINDOW, qos=1)
                await asyncio.sleep(0.1)
            for config in configs:
                await until_counted(config, answered=20)
                sensor = (await read_status(config))["sources"]["sensor-plant"]
                assert (sensor["restarts"], sensor["state"]) == (0, "up")
    ids = set(re.findall(r"as (skerry-\S+) ", (tmp_path / "site.log").read_text()))
    assert len(ids) == 4, ids  # a sensor and an output of each
    for config in configs:
        assert "taken over" not in (config.parent / "agent.log").read_text()


async def test_another_client_of_a_sensors_id_is_not_thrown_out_again_and_again(tmp_path: Path):
    """Mosquitto 2.0.11 ends a session that is taken over without saying so; later ones say so."""
    config = write_device(tmp_path)
    with SiteMosquitto(tmp_path) as broker:
        config.write_text(config.read_text() + SIGNAL + SENSOR + broker.keys)
        async with running(config):
            await until_up(config)
            [mine] = re.findall(r"as (skerry-\S+) ", (tmp_path / "site.log").read_text())
            end = time.monotonic() + 15
            while time.monotonic() < end:  # as a second device that comes back after a second
                with contextlib.suppress(LinkLostError, TimeoutError):
                    other = await connect_broker(site_section(broker, tmp_path), mine)
                    try:
                        await asyncio.wait_for(other.receive(), max(0.1, end - time.monotonic()))
                    finally:
                        await other.close()
                await asyncio.sleep(1.0)
            sensor = (await read_status(config))["sources"]["sensor-plant"]
    assert sensor["restarts"] <= 8


def site_section(broker: SiteMosquitto, folder: Path) -> SensorSection:
    """A sensor's keys that reach the site's broker."""
    return SensorSection(
        name="plant",
        topics=("plant/#",),
        broker=f"mqtt://127.0.0.1:{broker.port}",
        username=USER,
        password_file=str(folder / "site.password"),
    )


async def until_counted(config: Path, answered: int) -> None:
    async with asyncio.timeout(90):
        while (await read_status(config))["sources"]["sensor-plant"]["answered"] < answered:
            await asyncio.sleep(0.05)


async def test_what_the_broker_has_kept_is_not_handed_on_unless_it_is_asked_for(tmp_path: Path):
    with SiteMosquitto(tmp_path) as broker:
        section = site_section(broker, tmp_path)
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
