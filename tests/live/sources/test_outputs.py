"""Results out of a real agent process: an MQTT topic of a real Mosquitto with Home Assistant's discovery, files."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.edge_agent.doubles.device import DEVICE, write_device
from tests.live.doubles.site_agent import ask, running, until
from tests.live.doubles.site_broker import Heard, SiteMosquitto

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
TOPIC = f"skerry/{DEVICE}/answers"
LABEL = f"homeassistant/sensor/skerry_{DEVICE}_ha_label/config"
AVAILABLE = f"skerry/{DEVICE}/ha/availability"


async def test_home_assistant_finds_the_device_sees_its_answers_and_forgets_it_when_the_output_is_gone(tmp_path: Path):
    config = write_device(tmp_path)
    plain = config.read_text()
    with SiteMosquitto(tmp_path) as broker:
        output = f'\n[[output]]\nname = "ha"\nkind = "mqtt"\nhome_assistant = "homeassistant"\n{broker.keys}'
        lines = '\n[[output]]\nname = "lines"\nkind = "lines"\npath = "answers.jsonl"\n'
        config.write_text(plain + output + lines)
        async with broker.client() as client:
            heard = Heard()
            listening = asyncio.create_task(heard.listen(client))
            async with running(config) as process:
                await until(lambda: heard.last.get(AVAILABLE) == "online")
                label = heard.last[LABEL]
                assert label["state_topic"] == TOPIC
                assert label["availability_topic"] == AVAILABLE
                ids = [await ask(config) for _ in range(3)]
                await until(lambda: len(heard.of(TOPIC)) == 3)
                assert [each["answer_id"] for each in heard.of(TOPIC)] == ids
                assert heard.of(TOPIC)[0]["label_name"] in label["options"]

                broker.stop()  # a broker that is away: answers go on, and arrive when it is back
                kept = [await ask(config) for _ in range(2)]
                process.kill()  # and so does what a crash left behind
                await asyncio.to_thread(process.wait)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        assert {*ids, *kept} >= {
            json.loads(line)["answer_id"] for line in (tmp_path / "answers.jsonl").read_text().splitlines()
        }
        broker.start()
        async with broker.client() as client:
            heard = Heard()
            listening = asyncio.create_task(heard.listen(client))
            async with running(config) as process:
                await until(lambda: {each["answer_id"] for each in heard.of(TOPIC)} >= set(kept))
                await until(lambda: heard.last.get(AVAILABLE) == "online")
                process.kill()
                await until(lambda: heard.last.get(AVAILABLE) == "offline")  # the broker's own word
            config.write_text(plain + lines)
            announced = {topic for topic, said in heard.last.items() if topic.startswith("homeassistant/") and said}
            assert LABEL in announced
            async with running(config):
                await until(lambda: not any(heard.last[topic] for topic in (*announced, AVAILABLE)))
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
