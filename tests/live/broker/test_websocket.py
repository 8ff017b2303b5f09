"""A device behind a firewall: MQTT over WebSocket at Mosquitto, through an HTTP proxy that asks for a password."""

import asyncio
import json
from pathlib import Path

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness, find_free_port
from tests.in_process import skerry
from tests.live.doubles.fleet import QUICK, burst, judged, policy, samples, settle
from tests.live.doubles.http_proxy import proxying
from wire.process.exit_codes import ExitCode
from wire.transport.base import LinkLostError
from wire.transport.mqtt import MqttTransport
from wire.transport.routes import LinkRoute

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
CREDENTIALS = "plant:open sesame"


async def examine(agent: AgentHandle) -> int:
    """Exit code of `skerry doctor` for the device, by the route of its configuration."""
    done = await asyncio.to_thread(skerry, "doctor", "--config", str(agent.child.config), "--json")
    route = next(each for each in json.loads(done.stdout)["findings"] if each["check"] == "broker")
    assert ("wss://" in route["text"], "HTTP 407" in route["text"]) == (True, done.returncode != ExitCode.OK)
    return done.returncode


async def test_a_device_behind_a_proxy_asks_over_websocket_and_nobody_else_gets_in(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    port = find_free_port()
    hub = await stage.start_hub(bundle.path, {"broker": {"websocket_port": port}})
    secret = tmp_path / "proxy-credentials"
    secret.write_text(f"{CREDENTIALS}\n")
    secret.chmod(0o600)
    async with proxying(CREDENTIALS) as proxy:
        link = {**QUICK["link"], "websocket": f"wss://127.0.0.1:{port}/mqtt", "proxy": f"http://127.0.0.1:{proxy.port}"}
        extra = {**QUICK, "link": {**link, "proxy_credentials_file": str(secret)}}
        agent = await stage.add_agent("a", bundle.path, policy(tmp_path), extra)
        await stage.start_agent(agent)
        answers = await burst(stage, agent, bundle, samples(60))
        await settle(stage)
        assert set(proxy.targets) == {f"127.0.0.1:{port}"}
        assert b"MQTT" not in proxy.carried  # TLS is spoken through it
        status = await stage.fetch_status(agent)
        assert status["sent"]["sockets"] > 60 * 500  # the kernel counts as with any other link
        assert await examine(agent) == ExitCode.OK
        secret.write_text("plant:wrong\n")
        assert await examine(agent) == ExitCode.CHECK_FAILED
        await hub.child.kill()  # the link is gone, and the proxy lets nobody through any more
        await stage.launch_hub()
        await stage.wait_for(agent, lambda now: "HTTP 407" in now["link_error"], "the refusal is not told")
        secret.write_text(f"{CREDENTIALS}\n")
        await stage.wait_for(agent, lambda now: now["link"] == "up", "no way back")
        answers += await burst(stage, agent, bundle, samples(20, seed=5))
        await settle(stage)
    for scheme, own in (("ws", port), ("wss", port), ("ws", hub.broker_port)):  # nobody without the hub's certificate
        route = LinkRoute(websocket=f"{scheme}://127.0.0.1:{own}/mqtt")
        with pytest.raises(LinkLostError):
            await MqttTransport.connect_by(route, "127.0.0.1", own, "demo--b", None, timeout_s=5.0)
    report = judged(stage)
    assert (report.lost, report.doubled, len(answers)) == (0, 0, 80), report.format_text()
