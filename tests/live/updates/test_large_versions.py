"""A hub serves a version whose weights are larger than 2 GiB to agents that never have more than its edge part."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.bundle.archive import pack_bundle
from models.bundle.bundle import Bundle, open_bundle
from models.bundle.hub_part import PART_FILE, open_hub_part
from models.bundle.manifest import HUB_FOLDER
from simulations.processes import AgentHandle, ProcessHarness
from tests.in_process import skerry
from tests.live.doubles.fleet import PATIENT_S, QUICK, ask, judged, policy, settle
from tests.live.doubles.large import FAVOURED, make_large_version, poll_as_a_device

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
GIB = 1 << 30
AGENTS = ("a", "b")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[ProcessHarness]:
    """Without the search of every file that other stages end with: these are too large to be read."""
    async with ProcessHarness(tmp_path / "stage") as stage:
        yield stage


async def start_fleet(stage: ProcessHarness, bundle: Bundle, folder: Path) -> list[AgentHandle]:
    await stage.start_hub(bundle.path, {"engine": {"ready_s": 300}}, [policy(folder, budget_s=PATIENT_S)])
    agents = [await stage.add_agent(name, "tuf:echo", "tuf:live", QUICK) for name in AGENTS]
    for agent in agents:
        await stage.start_agent(agent)
    return agents


def sample(label: int) -> Any:
    scores = np.full(10, 0.1, np.float32)
    scores[label] = 0.9
    return scores


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.heavy
async def test_a_hub_part_above_2_gib_is_served_to_agents_whose_disks_hold_the_edge_part_alone(
    stage: ProcessHarness, tmp_path: Path
):
    bundle = make_large_version(tmp_path)
    part = open_hub_part(bundle.path, bundle.manifest)
    assert part.manifest.weight_bytes > 2 * GIB
    agents = await start_fleet(stage, bundle, tmp_path)
    for agent in agents:
        for label in (1, 3):
            answer = await ask(stage, agent, bundle, sample(label))
            assert (answer["source"], answer["model_version"]) == ("hub", "1")
    async with stage.session.post(f"{agents[0].url}/v2/models/echo/infer", json=body(sample(2))) as response:
        outputs = {each["name"]: each["data"] for each in (await response.json())["outputs"]}
    assert outputs["label"] == [FAVOURED], "what only the end of the table can tell"
    await settle(stage)
    report = judged(stage)
    assert (report.lost, report.doubled, report.refused) == (0, 0, 0)
    edge_bytes = len(pack_bundle(bundle))
    for agent in agents:
        assert not list(agent.folder.rglob(HUB_FOLDER))
        assert not list(agent.folder.rglob(PART_FILE))
        slots = [path for path in agent.folder.rglob("slots/*/*") if path.is_file()]
        assert 0 < sum(path.stat().st_size for path in slots) <= 1.01 * edge_bytes
        assert max(path.stat().st_size for path in agent.folder.rglob("*") if path.is_file()) < 16 << 20
    assert stage.hub is not None
    url, root = f"{stage.hub.url}/tuf", stage.repository.read_root()
    fetched, stored = await asyncio.to_thread(poll_as_a_device, tmp_path / "poll", url, root)
    assert 0 < fetched <= 1.01 * edge_bytes
    assert 0 < stored <= 1.01 * edge_bytes
    shard = next(iter(part.manifest.weights))
    for digest in (part.digest, part.manifest.files[shard].sha256):
        assert await asyncio.to_thread(status_of, f"{url}/parts/{digest}") == 404
    listed = f"{url}/targets/models/echo/{part.digest}.echo-1.hub.json"
    assert await asyncio.to_thread(status_of, listed) == 404


def body(x: Any) -> dict[str, Any]:
    tensor = {"name": "scores", "shape": [1, *x.shape], "datatype": "FP32", "data": x.ravel().tolist()}
    return {"inputs": [tensor]}


async def test_a_second_hub_fetches_a_version_from_a_running_one_with_its_operators_key_and_not_without(
    stage: ProcessHarness, tmp_path: Path
):
    bundle = make_large_version(tmp_path, rows=200_000)  # 51 MB
    hub = await stage.start_hub(bundle.path, policies=[policy(tmp_path)])
    made = await stage.call_admin("POST", "/v1/admin/keys", {"name": "hub-2", "scopes": ["operate"]})
    key = tmp_path / "hub-1.key"
    key.write_text(made["token"])
    key.chmod(0o600)
    (tmp_path / "models").mkdir()
    config = tmp_path / "hub-2.toml"
    config.write_text('state = "hub-2"\nmodels_folder = "models"\n')
    root = sha256(stage.repository.read_root()).hexdigest()
    words = ("hub", "fetch", "echo@1", "--from", f"{hub.url}/tuf", "--root", root, "--config", str(config))
    refused = await asyncio.to_thread(skerry, *words)
    assert "hub key create NAME --scope operate" in refused.stderr
    assert not (tmp_path / "models" / "echo@1").exists()
    fetched = await asyncio.to_thread(skerry, *words, "--token-file", str(key))
    assert (fetched.returncode, fetched.stderr) == (0, "")
    copy = open_bundle(tmp_path / "models" / "echo@1")
    assert copy.digest == bundle.digest
    open_hub_part(copy.path, copy.manifest).verify_weights()
