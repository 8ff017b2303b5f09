"""Over a whole run, strings planted in all that callers say are on no wire, in no file and in no reply."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.fleet import POLICY, QUICK, ask, burst, samples, settle
from tests.live.doubles.own_broker import OwnBroker, tapped
from tests.live.doubles.plain import Plain, in_clear

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
CANARY = "CANARY"
PIXEL = np.float32(0.7234567)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OwnBroker]:
    with OwnBroker(tmp_path) as broker:
        yield broker


def planted(x: Any) -> Any:
    """The same sample with pixels that spell a canary."""
    return np.where(x > np.median(x), PIXEL, x).astype(np.float32)


def documents(folder: Path) -> dict[str, Path]:
    """A policy for each mode that asks; every one names a subject field."""
    found = {}
    for mode in ("hub_first", "wait", "answer_now"):
        text = POLICY.format(mode=mode, budget_s=0.5)
        text = text.replace('purpose = "test"', 'purpose = "test"\nsubject_field = "who"')
        found[mode] = folder / f"{mode}.toml"
        found[mode].write_text(text)
    return found


async def said_by_callers(stage: ProcessHarness, agent: AgentHandle, bundle: Bundle) -> None:
    """All that a caller can say, well formed and not."""
    for number, x in enumerate(samples(6)):
        said = {"subject": f"{CANARY}-subject", "data_class": "private" if number == 5 else "open"}
        await ask(stage, agent, bundle, planted(x), id=f"{CANARY}-request", parameters=said)
    await burst(stage, agent, bundle, [planted(x) for x in samples(6, 4)], at_once=3)
    model = f"{agent.url}/v2/models/{bundle.manifest.name}/infer"
    row = {"name": bundle.manifest.input.name, "shape": [1, 1], "datatype": "FP32", "data": [float(PIXEL)]}
    for wrong in (
        {"inputs": [row]},
        {"inputs": [{**row, "data": [f"{CANARY}-text"]}]},
        {"inputs": [row], "parameters": {"data_class": f"{CANARY} no word"}},
        {"inputs": [row], "parameters": {"subject": f"{CANARY}" * 99}},
    ):
        async with stage.session.post(model, json=wrong) as response:
            assert response.status == 400
            assert CANARY not in await response.text()


async def told_by_routes(stage: ProcessHarness, agent: AgentHandle, answer: dict[str, Any]) -> str:
    """What an operator can read of device and hub."""
    assert stage.hub is not None
    its = f"/v1/answers/{answer['answer_id']}"
    pages = [f"{agent.url}{path}" for path in ("/metrics", "/v1/status", its, f"{its}/why")]
    told = [await page(stage, url) for url in (*pages, f"{stage.hub.url}/metrics")]
    return "".join(told) + json.dumps(await stage.call_admin("GET", "/v1/admin/status"))


async def page(stage: ProcessHarness, url: str) -> str:
    async with stage.session.get(url) as response:
        return await response.text()


async def test_what_callers_say_is_on_no_wire_in_no_file_and_in_no_reply(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, broker: OwnBroker
):
    rules = documents(tmp_path)
    async with tapped(broker) as carried:
        hub = await stage.start_hub(bundle.path, broker.for_the_hub, policies=[*rules.values()][:1])
        names = {mode.replace("_", "-"): file for mode, file in rules.items()}
        agents = [await stage.add_agent(name, bundle.path, file, QUICK) for name, file in names.items()]
        plain = Plain(broker.port, broker.ground.server, agents[0].folder / "device.pem", broker.ground.ca_file)
        async with in_clear(plain) as port:
            card = agents[0].folder / "identity.json"
            card.write_text(json.dumps({**json.loads(card.read_text()), "broker_port": port}))
            for agent in agents:
                await stage.start_agent(agent)
            await asyncio.gather(*(said_by_callers(stage, agent, bundle) for agent in agents))
            await hub.child.kill()
            await said_by_callers(stage, agents[0], bundle)
            broker.kill()
            await said_by_callers(stage, agents[0], bundle)
            broker.start()
            await hub.child.start()
            await settle(stage)
            shown = await told_by_routes(stage, agents[0], await ask(stage, agents[0], bundle, planted(samples(1)[0])))
    await stage.stop()
    texts = (CANARY.encode(), b"0.7234567", PIXEL.tobytes() * 2, PIXEL.tobytes()[::-1] * 2)
    wires = {"broker": b"\n".join(carried), "socket": bytes(plain.carried), "routes": shown.encode()}
    assert {topic.rsplit(b"/", 1)[1] for topic in re.findall(rb"v1/\S+", wires["broker"])} >= {b"q", b"r"}
    assert re.search(rb"v1/../demo--hub-first/up/q", wires["socket"]), "the proxy should have heard the questions"
    places = {**wires, **{str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}}
    assert [(where, text) for where, held in places.items() for text in texts if text in held] == []
