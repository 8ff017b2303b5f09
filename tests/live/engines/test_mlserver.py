"""MLServer, unmodified, computes a hub's model: the same answers, refusals in one line, killed under load."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_hub.engine.base import EngineState
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.types import EngineOptions, RemoteServer
from tests.cloud_hub.doubles.devices import SimDevice
from tests.cloud_hub.doubles.site import Ear, effects_in, serving
from tests.cloud_hub.engine.test_bundle import CODES
from tests.cloud_hub.engine.test_remote import GRAPHS, PICTURE, golden_bundle, net, questions, refusal
from tests.cloud_hub.runtime.test_remote_engine import NET, echo_bundle
from tests.live.engines.mlserver import MlServer

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
QUESTIONS = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlServer]:
    others = {"other-tail": net(CODES, 9), "small-tail": net((2, 4, 5), 1), "narrow-tail": net(CODES, 1, outputs=7)}
    echo = {"echo-tail": NET, "echo-whole": NET}
    made = MlServer(tmp_path_factory.mktemp("mlserver") / "graphs", {**GRAPHS, **others, **echo}).start()
    yield made
    made.kill()


def options(url: str, tail: str) -> EngineOptions:
    return EngineOptions(max_batch=8, remote={"digits": RemoteServer(url, tail, "digits-whole", answer_s=30.0)})


def test_it_answers_bit_by_bit_as_the_bundle_in_this_process(tmp_path: Path, server: MlServer):
    engine = open_engine(golden_bundle(tmp_path), options(server.url, "digits-tail"))
    local = open_engine(golden_bundle(tmp_path), EngineOptions(max_batch=8))
    assert engine.health().state is EngineState.READY
    assert engine.card.input_shape == PICTURE
    for count in (1, 5, 7):
        found, expected = (each.infer(questions(count)) for each in (engine, local))
        assert [one.scores for one in found] == [one.scores for one in expected]
    engine.stop()


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        ("other-tail", "answers the golden set otherwise than the bundle"),
        ("small-tail", "takes FP32 [-1, 2, 4, 5], the manifest says FP32 [-1, 2, 4, 4]"),
        ("narrow-tail", "the manifest says 10 outputs"),
        ("nobody", "[404]"),
    ],
)
def test_another_model_another_shape_and_no_model_are_refused_in_one_line(tmp_path: Path, server: MlServer, tail, says):
    assert says in refusal(tmp_path, options(server.url, tail))


async def test_killed_under_load_it_loses_no_question_and_none_is_answered_twice(tmp_path: Path, server: MlServer):
    there = RemoteServer(server.url, "echo-tail", "echo-whole", answer_s=30.0)
    engine = await asyncio.to_thread(
        open_engine, echo_bundle(tmp_path), EngineOptions(max_batch=4, remote={"echo@1": there})
    )
    device = SimDevice()
    async with serving(tmp_path, device, engine=engine) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(*range(1, QUESTIONS // 2))
        before = await ear.verdicts(1, within_s=60)  # the rest is under way, or waits
        await asyncio.to_thread(server.kill)
        ear.ask(*range(QUESTIONS // 2, QUESTIONS + 1))
        async with asyncio.timeout(60):
            while site.hub.status()["engines_down"] != ["echo@1"]:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
        after = await ear.verdicts(QUESTIONS - len(before), within_s=120)
        assert site.hub.status()["open"] == 0
    assert before.keys() | after.keys() == set(range(1, QUESTIONS + 1))
    assert not before.keys() & after.keys()
    assert effects_in(tmp_path) == QUESTIONS
