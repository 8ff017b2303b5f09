"""Bundles of five kinds in real agents against one real hub: what is asked, what is answered, and by whom.

Law: what a device or the hub says is compared with the bundle's own halves, run here. `SKERRY_ZOO_BUNDLES` names a
folder of bundles to take instead of the small ones.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from cloud_hub.engine.torch import TorchEngine
from cloud_hub.engine.types import WorkItem
from edge_agent.cli.agent import app
from models.bundle.bundle import Bundle, open_bundle
from models.bundle.manifest import Manifest, ModelKind
from models.runtime.golden import golden_samples
from models.runtime.onnx_runner import OnnxRunner
from models.runtime.runner import Inference
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.fleet import QUICK, judged, settle
from tests.live.doubles.forged import KINDS, forged
from wire.protocol.messages import Prediction, TensorDType

pytestmark = [
    pytest.mark.live,
    pytest.mark.heavy,
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="module"),
]
GIVEN = os.environ.get("SKERRY_ZOO_BUNDLES", "")
NAMES = sorted(path.parent.name for path in Path(GIVEN).glob("*/manifest.json")) if GIVEN else list(KINDS)
AT_ONCE = 8
STRANGE = 120  # samples after which drift must have been seen
BUDGET_S = 30.0
POLICY = """
schema = 2
name = "{name}"
version = 1
issued = 2026-01-01
expires = 2099-12-31
[escalation]
mode = "wait"
threshold = {threshold!r}
audit_share = 0.0
budget_s = {budget_s}
[egress]
ceiling = "P2"
{fields}
[egress.data_class]
open = true
[locality]
hubs = ["hub-1"]
regions = ["local"]
[retention]
purpose = "test"
[budget]
bytes_per_day = 100_000_000
"""
FIELD = '[[egress.field]]\nname = "{}"\nlevel = "P2"\n'


class Halves(NamedTuple):
    """Of one bundle, run here on its golden samples: the device's, the hub's on its codes, and the hub's alone."""

    samples: Any
    edge: list[Inference]
    tail: list[Prediction]
    whole: list[Prediction]


class Fleet(NamedTuple):
    """Everything of one model, by the bundle's folder name."""

    stage: ProcessHarness
    bundles: dict[str, Bundle]
    agents: dict[str, AgentHandle]
    halves: dict[str, Halves]

    def manifest(self, name: str) -> Manifest:
        return self.bundles[name].manifest

    @property
    def hub(self) -> str:
        assert self.stage.hub is not None
        return self.stage.hub.url


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    if GIVEN:
        return {name: open_bundle(Path(GIVEN) / name) for name in NAMES}
    folder = tmp_path_factory.mktemp("bundles")
    return {name: forged(name, folder) for name in NAMES}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(bundles: dict[str, Bundle], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    policies = [policy(folder, name, bundle.manifest) for name, bundle in bundles.items()]
    async with ProcessHarness(folder) as stage:
        settings = {"engine": {"precision": "float32"}}  # as `run_here` computes; "auto" may choose bfloat16
        await stage.start_hub([bundle.path for bundle in bundles.values()], settings, policies=policies)
        agents = {name: await joined(stage, name, bundle.manifest) for name, bundle in bundles.items()}
        for agent in agents.values():  # one after the other: each takes its model out of the update repository
            await stage.start_agent(agent)
        yield Fleet(stage, bundles, agents, {name: run_here(bundle) for name, bundle in bundles.items()})


def policy(folder: Path, name: str, manifest: Manifest) -> Path:
    """Asks below the threshold that the forge chose."""
    path = folder / f"{name}.toml"
    fields = "".join(FIELD.format(feature.name) for feature in manifest.features)
    threshold = manifest.calibration.threshold
    path.write_text(POLICY.format(name=slug(name), threshold=threshold, budget_s=BUDGET_S, fields=fields))
    return path


async def joined(stage: ProcessHarness, name: str, manifest: Manifest) -> AgentHandle:
    """By invite, living by the hub's repository, with a watched folder."""
    watched = stage.folder / slug(name) / "watched"
    watched.mkdir(parents=True)
    folder: dict[str, Any] = {"path": str(watched), "every_s": 0.2, "data_class": "open"}
    extra: dict[str, Mapping[str, Any]] = {**QUICK, "folder": folder}
    return await stage.add_agent(slug(name), f"tuf:{manifest.name}", f"tuf:{slug(name)}", extra)


def slug(name: str) -> str:
    return name.replace("_", "-")


def run_here(bundle: Bundle) -> Halves:
    samples = golden_samples(bundle)
    runner, engine = OnnxRunner(bundle), TorchEngine(bundle, max_batch=len(samples))
    engine.start()
    edge = [runner.infer_one(sample) for sample in samples]
    codec = runner.codec  # a codec of fixed length may coarsen codes on their way
    arrived = [{name: codec.decode(name, codec.encode(name, c)) for name, c in one.features.items()} for one in edge]
    tail = engine.infer([WorkItem(codes) for codes in arrived])
    whole = engine.infer([WorkItem(raw=sample) for sample in samples])
    runner.close()
    return Halves(samples, edge, tail, whole)


def tensor(manifest: Manifest, batch: Any) -> dict[str, Any]:
    """`batch` `[n, *shape]` as the protocol's JSON has it."""
    spec = manifest.input
    return {"name": spec.name, "shape": [*batch.shape], "datatype": spec.dtype.value, "data": batch.ravel().tolist()}


async def infer(fleet: Fleet, url: str, name: str, batch: Any) -> tuple[int, dict[str, Any]]:
    """Status and body; the outputs by name."""
    manifest = fleet.manifest(name)
    body = {"inputs": [tensor(manifest, batch)]}
    async with fleet.stage.session.post(f"{url}/v2/models/{manifest.name}/infer", json=body) as response:
        reply = await response.json()
        return response.status, {**reply, **{o["name"]: o["data"] for o in reply.get("outputs", ())}}


async def get(fleet: Fleet, url: str) -> dict[str, Any]:
    async with fleet.stage.session.get(url) as response:
        reply: dict[str, Any] = await response.json()
        assert response.status == 200, reply
        return reply


async def asked(fleet: Fleet, name: str) -> list[dict[str, Any]]:
    """The replies to all golden samples, one request each, some at once, in order."""
    room = asyncio.Semaphore(AT_ONCE)
    agent = fleet.agents[name]
    await fleet.stage.wait_for(agent, lambda status: status["link"] == "up", "no link")

    async def one(sample: Any) -> dict[str, Any]:
        async with room:
            status, reply = await infer(fleet, agent.url, name, sample[None])
            assert status == 200, reply
            return reply

    return await asyncio.gather(*map(one, fleet.halves[name].samples))


def same(reply: dict[str, Any], expected: Prediction, manifest: Manifest) -> None:
    """The reply to one sample is that prediction, in the outputs of its kind of model."""
    assert reply["confidence"] == pytest.approx([expected.confidence], abs=1e-3)
    if manifest.kind is ModelKind.REGRESSOR:
        assert reply["value"] == pytest.approx(expected.scores, rel=1e-3)
        assert "label" not in reply
    else:
        assert reply["label"] == [expected.label]
        assert reply["label_name"] == [manifest.labels[expected.label]]
        assert reply["scores"] == pytest.approx(expected.scores, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
async def test_a_device_answers_what_it_is_sure_of_and_the_tail_answers_the_rest(fleet: Fleet, name: str):
    manifest, (_, edge, tail, _) = fleet.manifest(name), fleet.halves[name]
    sources = []
    for reply, here, there in zip(await asked(fleet, name), edge, tail, strict=True):
        facts = reply["parameters"]
        sure = here.prediction.confidence >= manifest.calibration.threshold
        assert (facts["source"], facts["reason"]) == (("local", "confident") if sure else ("hub", "verdict")), facts
        assert bool(facts["escalation_id"]) is not sure
        same(reply, here.prediction if sure else there, manifest)
        sources.append(facts["source"])
    below = [one.prediction.confidence < manifest.calibration.threshold for one in edge]
    assert set(sources) == {"hub" if asks else "local" for asks in below}


@pytest.mark.parametrize("name", NAMES)
async def test_the_hubs_web_api_runs_the_whole_model_on_raw_samples(fleet: Fleet, name: str):
    samples, _, _, whole = fleet.halves[name]
    manifest = fleet.manifest(name)
    numbers: list[float] = []
    for start in range(0, len(samples), AT_ONCE):
        status, reply = await infer(fleet, fleet.hub, name, samples[start : start + AT_ONCE])
        assert (status, reply["parameters"]["source"]) == (200, "hub"), reply
        numbers += reply["value" if manifest.kind is ModelKind.REGRESSOR else "scores"]
    expected = [number for one in whole for number in one.scores]
    assert np.allclose(numbers, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
async def test_both_sides_describe_the_model_alike(fleet: Fleet, name: str):
    manifest = fleet.manifest(name)
    device, hub = [await get(fleet, f"{url}/v2/models/{manifest.name}") for url in (fleet.agents[name].url, fleet.hub)]
    spec = manifest.input
    told = {"low": spec.low, "high": spec.high}
    given = {"name": spec.name, "datatype": spec.dtype.value, "shape": [-1, *spec.shape], "parameters": told}
    assert device["inputs"] == hub["inputs"] == [given]
    assert device["outputs"] == hub["outputs"]
    regressor = ["value", "confidence"]
    classifier = ["scores", "label", "confidence", "label_name"]
    expected = regressor if manifest.kind is ModelKind.REGRESSOR else classifier
    assert [output["name"] for output in hub["outputs"]] == expected
    assert hub["outputs"][0]["shape"] == [-1, manifest.outputs]


@pytest.mark.parametrize("name", NAMES)
async def test_a_value_beyond_the_models_range_is_refused_on_both_sides_and_harms_nobody(fleet: Fleet, name: str):
    sample = fleet.halves[name].samples[:1].copy()
    sample.flat[0] = fleet.manifest(name).input.high + 1
    for url in (fleet.agents[name].url, fleet.hub):
        status, reply = await infer(fleet, url, name, sample)
        assert (status, bool(reply["error"])) == (400, True)
    status, _ = await infer(fleet, fleet.hub, name, fleet.halves[name].samples[:1])
    assert status == 200


@pytest.mark.parametrize("name", NAMES)
async def test_an_answer_can_be_asked_why_and_told_the_truth(fleet: Fleet, name: str):
    manifest, agent = fleet.manifest(name), fleet.agents[name]
    confidences = [one.prediction.confidence for one in fleet.halves[name].edge]
    unsure = int(np.argmin(confidences))
    asks = confidences[unsure] < manifest.calibration.threshold
    _, reply = await infer(fleet, agent.url, name, fleet.halves[name].samples[unsure][None])
    id_ = reply["parameters"]["answer_id"]
    (record,) = (await get(fleet, f"{agent.url}/v1/answers/{id_}?wait_s=20"))["records"]
    truth: object = 12.5 if manifest.kind is ModelKind.REGRESSOR else manifest.labels[1]
    url = f"{agent.url}/v1/answers/{id_}"
    async with fleet.stage.session.post(f"{url}/feedback", json={"truth": truth}) as response:
        assert response.status == 200, await response.text()
    async with fleet.stage.session.post(f"{url}/feedback", json={"truth": "no such label"}) as response:
        assert response.status == 400
    told = await typed("why", id_, "--url", agent.url)
    if manifest.kind is ModelKind.REGRESSOR:
        assert record["value"] == pytest.approx(reply["value"][0])
        assert f"{record['value']:.6g}" in told
        assert "12.5, as a user said" in told
    else:
        assert record["value"] is None
        assert record["label_name"] in told
        assert "1, as a user said" in told
    assert (f"by the hub by {manifest.model}" in told) is asks
    status = await typed("status", "--url", agent.url)
    assert manifest.model in status
    assert "drift" in status


async def typed(*words: str) -> str:
    """What `skerry agent ...` prints, its lines joined: a narrow terminal folds them."""
    result = await asyncio.to_thread(CliRunner().invoke, app, list(words), env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", NAMES)
async def test_a_sample_in_a_watched_folder_is_answered(fleet: Fleet, name: str):
    watched = fleet.stage.folder / slug(name) / "watched"
    half_made = watched / ".one.npy"
    np.save(half_made, fleet.halves[name].samples[0])
    half_made.rename(watched / "one.npy")
    answer = watched / "done" / "one.npy.json"
    for _ in range(600):
        if answer.exists():
            break
        await asyncio.sleep(0.05)
    told = answer.read_text()
    assert not list((watched / "failed").glob("*"))
    assert f'"model":"{fleet.manifest(name).name}"' in told


@pytest.mark.parametrize("name", NAMES)
async def test_samples_of_another_kind_ring_the_drift_alarm(fleet: Fleet, name: str):
    """One sample, the strangest that the model takes, many times: nothing of it can be chance."""
    manifest, agent = fleet.manifest(name), fleet.agents[name]
    assert manifest.gate.confidence_deciles
    assert (await fleet.stage.fetch_status(agent))["alarms"] == []
    spec = manifest.input
    lot = np.random.default_rng(9).random((1, *spec.shape)) < 0.5
    strange = np.where(lot, spec.low, spec.high).astype(np.int64 if spec.dtype is TensorDType.INT64 else np.float32)
    for _ in range(STRANGE // AT_ONCE):
        status, _ = await infer(fleet, agent.url, name, np.repeat(strange, AT_ONCE, axis=0))
        assert status == 200
    facts = await fleet.stage.fetch_status(agent)
    assert facts["alarms"] == ["drift"], facts["drift"]
    assert facts["drift"]["level"] >= 1
    assert "alarm since" in await typed("status", "--url", agent.url)


async def test_nothing_was_lost(fleet: Fleet):
    await settle(fleet.stage)
    report = judged(fleet.stage)
    assert (report.lost, report.doubled, report.refused) == (0, 0, 0), report.format_text()
    assert report.accepted > 0
