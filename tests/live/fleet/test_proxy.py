"""A device that reaches others through a proxy alone: only the proxy knows where the hub's name leads."""

import asyncio
import json
import subprocess
import time
from pathlib import Path

import pytest
import tomli_w

from cloud_hub.system.client import call_hub_api, read_running_address
from cloud_hub.system.state_folder import StateDir
from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ChildProcess, HubHandle, ProcessHarness, find_free_port
from tests.edge_agent.doubles.rude_peers import Certificates, peer, stay_silent
from tests.in_process import skerry
from tests.live.doubles.fleet import QUICK, policy, settle, the_hub_answers
from tests.live.doubles.http_proxy import HttpProxy, proxying
from wire.process.exit_codes import ExitCode, ExitError

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
NAME = "hub.invalid"  # RFC 2606: no name service ever knows it
CREDENTIALS = "plant:open sesame"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "proxy-credentials"
    path.write_text(f"{CREDENTIALS}\n")
    path.chmod(0o600)
    return path


async def start_hub(stage: ProcessHarness, bundle: Bundle, rules: Path) -> HubHandle:
    """A hub by TLS whose invites and enrolment replies say its name alone."""
    port = find_free_port()
    api = {"port": port, "tls": True, "names": [NAME], "url": f"https://{NAME}:{port}"}
    hub = await stage.configure_hub(bundle.path, {"api": api, "broker": {"address": NAME}}, [rules])
    await hub.child.start()
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if (address := read_running_address(StateDir(hub.folder).running)) is not None:
            try:
                await asyncio.to_thread(call_hub_api, address, "GET", "/v2/health/ready")
            except ExitError:
                pass
            else:
                return hub
        await asyncio.sleep(0.1)
    raise AssertionError(hub.child.log_tail())


async def type_in(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(skerry, *map(str, words))


async def invite(hub: HubHandle) -> str:
    done = await type_in("hub", "invite", "demo--cam", "--config", hub.child.config, "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["invite"])


def configure(folder: Path, proxy: HttpProxy, secret: Path) -> AgentHandle:
    port = find_free_port()
    link = {**QUICK["link"], "proxy": f"http://127.0.0.1:{proxy.port}", "proxy_credentials_file": str(secret)}
    values = {"state": str(folder), "bundle": "tuf:digits", "policy": "tuf:live", "data_class": "open"}
    config = folder.parent / "cam.toml"
    config.write_text(tomli_w.dumps({**values, "api": {"port": port}, **QUICK, "link": link}))
    child = ChildProcess("edge_agent", config, folder.parent / "agent.log")
    return AgentHandle("cam", "demo--cam", folder, f"http://127.0.0.1:{port}", child)


async def test_a_device_enrols_updates_asks_renews_erases_and_retires_through_its_proxy_alone(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, secret: Path
):
    hub = await start_hub(stage, bundle, policy(tmp_path))
    folder = tmp_path / "cam"
    async with proxying(CREDENTIALS) as proxy:
        proxy.names[NAME] = "127.0.0.1"
        token = await invite(hub)
        direct = await type_in("agent", "enrol", token, "--dir", folder)
        assert direct.returncode == ExitCode.HUB, direct.stderr
        way = ("--proxy", f"http://127.0.0.1:{proxy.port}", "--proxy-credentials-file", secret)
        enrolled = await type_in("agent", "enrol", token, "--dir", folder, *way)
        assert enrolled.returncode == 0, enrolled.stderr

        agent = configure(folder, proxy, secret)
        let_certificate_be_due(folder)
        stage.agents.append(agent)
        await stage.start_agent(agent)
        await stage.wait_for(agent, lambda now: now["renewals"] == 1, "the certificate was not renewed")
        assert await the_hub_answers(stage, agent, bundle), "by a model that came from the hub's repository"
        await settle(stage)

        examined = await type_in("doctor", "--config", agent.child.config, "--json")
        assert examined.returncode == 0, examined.stdout
        assert (await type_in("erase", "patient-1", "--config", agent.child.config)).returncode == 0
        await agent.child.stop()
        renewed = await type_in("agent", "renew", "--config", agent.child.config)
        assert renewed.returncode == 0, renewed.stderr
        ledger = tmp_path / "ledger.jsonl"
        retire = ("agent", "retire", "--ledger", ledger, "--drain", "0", "--yes")
        left = await type_in(*retire, "--config", agent.child.config)
        assert left.returncode == 0, left.stderr
        api_port = json.loads(StateDir(hub.folder).running.read_text())["url"].rpartition(":")[2]
        assert set(proxy.targets) == {f"{NAME}:{api_port}", f"{NAME}:{hub.broker_port}"}
        assert proxy.refused == 0
        assert b"enrol" not in proxy.carried  # TLS is spoken through it


async def test_a_proxy_that_leads_to_another_hub_enrols_nobody(stage: ProcessHarness, bundle: Bundle, tmp_path: Path):
    hub = await start_hub(stage, bundle, policy(tmp_path))
    token = await invite(hub)
    port = int(json.loads(StateDir(hub.folder).running.read_text())["url"].rpartition(":")[2])
    await hub.child.stop()
    async with proxying() as proxy:
        with peer(stay_silent, Certificates(tmp_path).context(NAME)) as stranger:
            proxy.redirects[f"{NAME}:{port}"] = ("127.0.0.1", stranger)
            way = ("--proxy", f"http://127.0.0.1:{proxy.port}")
            done = await type_in("agent", "enrol", token, "--dir", tmp_path / "cam", *way)
    assert done.returncode == ExitCode.ENROLMENT, done.stderr
    assert "does not show the CA that the invite names" in done.stderr
    assert not (tmp_path / "cam" / "identity.json").exists()


def let_certificate_be_due(folder: Path) -> None:
    path = folder / "identity.json"
    fields = json.loads(path.read_text())
    begin, _ = fields["certificate_ms"]
    path.write_text(json.dumps({**fields, "certificate_ms": [begin - 10_000_000, begin + 60_000]}))
