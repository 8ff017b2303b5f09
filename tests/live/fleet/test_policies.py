"""Policies on their way to running devices: published by TUF, layered, followed by the hub, switched off by airgap."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_hub.repository.publish import publish_policy
from models.bundle.bundle import Bundle
from models.forge.data.digits import corrupt_pictures, load_heldout
from simulations.processes import AgentHandle, ProcessHarness
from tests import ROOT
from tests.blocks import environment
from tests.live.doubles.fleet import PATIENT_S, QUICK, policy, settle
from tests.policies.doubles.given import with_

pytestmark = pytest.mark.live
OTHERS = ("factory", "shop-camera", "telecom-probe", "airgap")  # each as the first, so `make heavy` runs them


async def answer(stage: ProcessHarness, agent: AgentHandle, bundle: Bundle, count: int = 12) -> list[dict[str, Any]]:
    """Doubtful digits; the parameters of each answer."""
    x, _ = load_heldout()
    x = corrupt_pictures(x, np.random.default_rng(1), 1.0)[:count]
    spec, found = bundle.manifest.input, []
    for one in x:
        tensor = {"name": spec.name, "shape": [1, *one.shape], "datatype": spec.dtype, "data": one.ravel().tolist()}
        body = {"inputs": [tensor], "parameters": {"data_class": "open"}}
        async with stage.session.post(f"{agent.url}/v2/models/{bundle.manifest.name}/infer", json=body) as response:
            found.append((await response.json())["parameters"])
    return found


def reasons(answers: list[dict[str, Any]]) -> set[str]:
    return {each["reason"] for each in answers}


async def test_a_new_version_reaches_devices_and_hub_and_questions_under_it_are_served(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    document = policy(tmp_path, budget_s=PATIENT_S)
    await stage.start_hub(bundle.path, policies=[document])
    agent = await stage.add_agent("a", f"tuf:{bundle.manifest.name}", "tuf:live", QUICK)
    await stage.start_agent(agent)
    before = (await stage.fetch_status(agent))["policy"]
    assert "verdict" in reasons(await answer(stage, agent, bundle))
    newer = with_(document.read_text(), ("version = 1", "version = 2"), ("bytes_per_day = 100", "bytes_per_day = 99"))
    publish_policy(stage.repository, newer.encode(), datetime.now(UTC))
    await stage.wait_for(agent, lambda status: status["policy"] != before, "version 2 never came")
    assert "verdict" in reasons(await answer(stage, agent, bundle))
    await settle(stage)
    counts = (await stage.fetch_status(agent))["counts"]
    assert counts.get("outcome_refused", 0) == 0


async def test_a_site_layer_narrows_what_is_published(stage: ProcessHarness, bundle: Bundle, tmp_path: Path):
    document = policy(tmp_path)
    document.write_text(with_(document.read_text(), ('name = "live"', 'name = "live"\nlayer = "tenant"')))
    ward = tmp_path / "ward.toml"
    closed = ('name = "live"', 'name = "ward"'), ("open = true", "open = false"), ('layer = "tenant"', 'layer = "site"')
    ward.write_text(with_(document.read_text(), *closed))
    await stage.start_hub(bundle.path, policies=[document])
    agent = await stage.add_agent("a", f"tuf:{bundle.manifest.name}", "tuf:live", QUICK)
    config = agent.child.config
    config.write_text(with_(config.read_text(), ('"tuf:live"', f'["tuf:live", "{ward}"]')))
    await stage.start_agent(agent)
    assert reasons(await answer(stage, agent, bundle)) == {"denied_data_class"}
    assert [part["name"] for part in (await stage.fetch_status(agent)).get("layers", [])] in ([], ["live", "ward"])


async def test_an_airgapped_device_answers_and_never_speaks(stage: ProcessHarness, bundle: Bundle, tmp_path: Path):
    hub = await stage.start_hub(bundle.path, policies=[policy(tmp_path)])
    agent = await stage.add_agent("a", bundle.path, "tuf:live", QUICK)
    config = agent.child.config
    config.write_text(f"airgap = true\n{config.read_text()}")
    await agent.child.start()
    await stage.wait_ready(agent)
    assert reasons(await answer(stage, agent, bundle)) <= {"local_only", "denied_policy_error"}
    status = await stage.fetch_status(agent)
    assert (status["link"], status["link_error"]) == ("down", "airgap = true: there is no link")
    assert "updates" not in status
    assert not connected(agent.child.pid, hub.broker_port)
    assert "sent_bytes" not in status["counts"]


def connected(pid: int, port: int) -> bool:
    """Whether a process has a TCP connection to the port (Linux: /proc)."""
    sockets = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if f"socket:[{words[9]}]" in sockets and int(words[2].split(":")[1], 16) == port:
            return True
    return False


# The demo under each template


def demo(folder: Path, template: str) -> dict[str, Any]:
    file = folder / f"{template}.json"
    command = [sys.executable, str(ROOT / "skerry.py"), "demo", "--template", template, "--json", str(file)]
    home = environment(folder) | {"XDG_CACHE_HOME": str(Path.home() / ".cache")}
    done = subprocess.run(command, env=home, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("template", ["clinic", *(pytest.param(name, marks=pytest.mark.heavy) for name in OTHERS)])
def test_the_demo_runs_under_every_template(tmp_path: Path, template: str):
    figures = demo(tmp_path, template)
    assert figures["template"] == template
    cases = {(case["device"], case["data_class"]): case for case in figures["cases"]}
    assert all(case["answers"] for case in cases.values())
    for case in cases.values():
        assert (case["doubtful"] == "leaves") or not case["asked"], case
    of_samples = [row for row in figures["left"] if row["key"] != "protocol"]
    assert all("features" in row["fields"] for row in of_samples)
    assert sum(row["messages"] for row in of_samples) == sum(case["asked"] for case in cases.values())
    if template == "clinic":
        spent = sum(row["releases"] for row in of_samples if row["device"] == "monitor-1")
        assert spent <= 58
        assert cases["ambulance-1", "vitals"]["stayed"].get("denied_rule")
    if template == "airgap":
        assert of_samples == []
