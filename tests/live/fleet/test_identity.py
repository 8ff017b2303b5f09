"""The life of an identity against the real broker and hub: renewal, revocation, clones, another CA, retirement."""

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.security.authority import Authority, encode_certificate, utc_now
from cloud_hub.system.client import call_hub_api
from edge_agent.identity.enrollment import enrol_device
from edge_agent.identity.identity import Identity, load_identity
from edge_agent.question.seal import Envelopes
from edge_agent.system import http
from simulations.processes import AgentHandle, ProcessHarness
from tests import ROOT
from tests.cloud_hub.doubles.joiner import Joiner
from tests.live.broker.test_broker import Site
from tests.live.doubles.fleet import BUSY_S, QUICK, ask, burst, judged, policy, samples, settle
from tests.live.doubles.own_broker import OwnBroker
from tests.live.hub.test_process import HubProcess
from wire.protocol.messages import HelloNote
from wire.protocol.topics import TopicChannel, build_topic
from wire.transport.base import DeliveryOutcome, LinkLostError
from wire.transport.mqtt import MqttTransport

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
DEVICE = "demo--cam-1"
DAY_S = 86_400


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubProcess]:
    started = HubProcess(tmp_path)
    await asyncio.to_thread(started.until, started.ready)
    yield started
    started.close()


async def connect(identity: Identity) -> MqttTransport:
    where = (identity.broker_host, identity.broker_port, identity.device)
    return await MqttTransport.connect(*where, identity.tls_context(), timeout_s=BUSY_S)


def admin(hub: HubProcess, method: str, path: str, **body: Any) -> Any:
    return call_hub_api(hub.address(), method, f"/v1/admin/{path}", body or None)


async def thrown_off(link: MqttTransport, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            while True:
                await link.receive()
    except LinkLostError:
        return True
    except TimeoutError:
        return False


# Revoked, suspended, doubled


async def test_a_revoked_device_loses_its_session_and_every_one_it_begins(hub, tmp_path):
    identity = await asyncio.to_thread(enrol_device, hub.invite(DEVICE), tmp_path / "d")
    bystander = await asyncio.to_thread(enrol_device, hub.invite("demo--cam-2"), tmp_path / "e")
    link, other = await connect(identity), await connect(bystander)
    await link.subscribe((build_topic(DEVICE, TopicChannel.REPLY),))
    admin(hub, "POST", f"devices/{DEVICE}/state", state="revoked")
    assert await thrown_off(link, BUSY_S)
    await asyncio.sleep(10.1)  # a device is thrown off at most once in ten seconds
    again = await connect(identity)  # its certificate is good for a week; nothing it says is heard
    await again.post(build_topic(DEVICE, TopicChannel.QUESTION), b"\x01" * 300)
    hello = Envelopes(identity).sign_note(HelloNote(1, "boot", "agent/1", ()), int(time.time() * 1000))
    await again.post(build_topic(DEVICE, TopicChannel.ASK), hello)
    assert await thrown_off(again, BUSY_S)
    assert not await thrown_off(other, 0.2)
    counters = admin(hub, "GET", "status")["counters"]
    assert counters["dropped.not_active"] == 1
    await asyncio.gather(*(each.close() for each in (link, again, other)))


async def test_two_machines_with_one_identity_are_suspended_together(hub, tmp_path):
    identity = await asyncio.to_thread(enrol_device, hub.invite(DEVICE), tmp_path / "d")
    envelopes = Envelopes(identity)

    async def speaks(boot: str) -> None:
        link = await connect(identity)
        note = envelopes.sign_note(HelloNote(1, boot, "agent/1", ()), int(time.time() * 1000))
        assert await link.post(build_topic(DEVICE, TopicChannel.ASK), note) is DeliveryOutcome.TAKEN
        await link.close()

    for boot in ("box-a", "box-a", "box-b"):
        await speaks(boot)
    await asyncio.sleep(0.3)
    assert admin(hub, "GET", f"devices/{DEVICE}")["state"] == "active"  # until here it may have been a restart
    await speaks("box-a")
    found = await asyncio.to_thread(hub.until, lambda: admin(hub, "GET", f"devices/{DEVICE}")["state"] == "suspended")
    assert found
    assert admin(hub, "GET", f"devices/{DEVICE}")["why"] == "clone_suspect"
    assert admin(hub, "GET", "status")["alarms"] == {"clone_suspect": [DEVICE], "ledger_flaw": []}


# Clocks


@pytest.mark.parametrize(
    "shift_days", [3650, -3650], ids=["as seen from ten years ago", "as seen from ten years ahead"]
)
async def test_the_brokers_certificate_is_judged_by_hub_time(tmp_path, shift_days):
    issued = utc_now() + timedelta(days=shift_days)
    site = Site(tmp_path)
    (tmp_path / "shifted").mkdir()
    made = site.authority.ensure_server(tmp_path / "shifted", (), issued)
    made.certificate.replace(tmp_path / "server.pem")
    made.key.replace(tmp_path / "server.key")
    await site.broker.start()
    floor_ms = int((issued + timedelta(days=1)).timestamp() * 1000)
    context = http.make_tls_context(site.authority.trusted, floor_ms)
    site.tls(DEVICE)
    context.load_cert_chain(tmp_path / "device.pem", tmp_path / "device.key")
    link = await site.connect(DEVICE, tls=context)
    assert await link.post(build_topic(DEVICE, TopicChannel.STATE), b"here") in (
        DeliveryOutcome.TAKEN,
        DeliveryOutcome.NOBODY,
    )
    context.floor_ms += 400 * DAY_S * 1000  # by now it is over, whatever a wall clock says
    with pytest.raises(LinkLostError, match="before hub time"):
        await site.connect(DEVICE, tls=context)
    await site.close()


# Renewal


async def until(stage: ProcessHarness, agent: AgentHandle, test: Any, within_s: float = BUSY_S) -> dict[str, Any]:
    await stage.wait_for(agent, test, "does not come to pass", within_s)
    return await stage.fetch_status(agent)


LIFE_S = 12


async def test_the_ca_is_down_past_the_end_of_a_certificate(stage, bundle):
    """Renewal at two thirds; then no CA: it serves; then no broker either: it serves; then all is well again."""
    with OwnBroker(stage.folder) as broker:
        await stage.start_hub(bundle.path, {**broker.for_the_hub, "enrol": {"certificate_days": LIFE_S / DAY_S}})
        agent = await stage.add_agent("d1", bundle.path, policy(stage.folder), QUICK)
        first = load_identity(agent.folder).certificate_ms
        await stage.start_agent(agent)
        assert (await renewed(stage, agent)) > 0
        assert load_identity(agent.folder).certificate_ms > first
        await stage.hub.child.kill()
        status = await until(stage, agent, certificate_ended)
        assert status["link"] == "up"  # the broker asks for a certificate at the door alone
        assert (await ask(stage, agent, bundle, samples(1)[0]))["source"] == "local"
        broker.kill()
        broker.start()
        await until(stage, agent, lambda s: s["link"] == "down" and "refused" in s["link_error"])
        assert (await ask(stage, agent, bundle, samples(1)[0]))["reason"] == "link_down"
        lengthen_certificates(stage)
        await stage.hub.child.start()
        await renewed(stage, agent)
        await burst(stage, agent, bundle, samples(8))
        await settle(stage)
        report = judged(stage)
        assert (report.lost, report.doubled) == (0, 0), report
        await stage.stop()


async def renewed(stage: ProcessHarness, agent: AgentHandle) -> int:
    """Wait until the agent has renewed its certificate once more and is connected by it; how many times in all."""
    before = await stage.fetch_status(agent)

    def is_so(status: dict[str, Any]) -> bool:
        again = status["renewals"] > before["renewals"] and status["link"] == "up"
        return bool(again and status["counts"].get("link_up", 0) > before["counts"].get("link_up", 0))

    return int((await until(stage, agent, is_so))["renewals"])


def certificate_ended(status: dict[str, Any]) -> bool:
    return "certificate_expired" in status["alarms"] and "no hub answers" in status["renewal_error"]


def lengthen_certificates(stage: ProcessHarness) -> None:
    """The hub's next start issues certificates for a day: what follows is not about their end."""
    assert stage.hub is not None
    config = stage.hub.child.config
    config.write_text(config.read_text().replace(f"certificate_days = {LIFE_S / DAY_S}", "certificate_days = 1.0"))


# Another CA


class Watch:
    """How long an agent's link was ever down, seen from outside."""

    def __init__(self, stage: ProcessHarness, agent: AgentHandle) -> None:
        self._stage, self._agent = stage, agent
        self.longest_s = 0.0

    async def run(self) -> None:
        down_at = None
        while True:
            up = (await self._stage.fetch_status(self._agent))["link"] == "up"
            now = time.monotonic()
            down_at = None if up else down_at or now
            self.longest_s = max(self.longest_s, now - down_at if down_at else 0.0)
            await asyncio.sleep(0.02)


async def ca(stage: ProcessHarness, step: str = "") -> dict[str, Any]:
    return await stage.call_admin("POST" if step else "GET", "/v1/admin/ca", {"step": step} if step else None)


def forgotten(stage: ProcessHarness, device: str) -> ssl.SSLContext:
    """A device's context with a certificate of the hub's first CA that is good for a week."""
    assert stage.hub is not None
    pki = stage.hub.folder / "pki"
    joiner, folder = Joiner(), stage.folder / "forgotten"
    folder.mkdir()
    (folder / "a.pem").write_text(
        encode_certificate(Authority.open(pki, utc_now()).issue_device(joiner.csr().encode(), device, utc_now()))
    )
    (folder / "a.key").write_bytes(joiner.key_pem())
    context = ssl.create_default_context(cafile=pki / "trusted.pem")
    context.load_cert_chain(folder / "a.pem", folder / "a.key")
    return context


async def test_another_ca_takes_over_and_nobody_is_away_for_five_seconds(stage, bundle):
    await stage.start_hub(bundle.path, {"enrol": {"certificate_days": 15 / DAY_S}})
    agents = [await stage.add_agent(f"d{n}", bundle.path, policy(stage.folder), QUICK) for n in range(2)]
    old = forgotten(stage, "demo--d9")
    began = time.monotonic()
    await asyncio.gather(*(stage.start_agent(agent) for agent in agents))
    start_s = time.monotonic() - began  # on a busy machine even a start takes longer than five seconds
    watches = [Watch(stage, agent) for agent in agents]
    tasks = [asyncio.create_task(watch.run()) for watch in watches]
    broker = stage.broker_pid()
    turned = await ca(stage, "rotate")
    assert sorted(turned["waiting_for"]) == ["demo--d0", "demo--d1"]
    for agent in agents:
        await until(stage, agent, lambda s: s["renewals"] >= 1 and s["link"] == "up")
        await burst(stage, agent, bundle, samples(4))
        assert len(load_identity(agent.folder).trusted) == 2
    assert stage.broker_pid() == broker  # the running broker has met the new CA without a restart
    await (await MqttTransport.connect("127.0.0.1", stage.hub.broker_port, "demo--d9", old, timeout_s=BUSY_S)).close()
    assert (await ca(stage))["waiting_for"] == []
    done = await ca(stage, "finish")
    assert (done["ca"], done["coming"]) == (turned["coming"], "")
    for agent in agents:
        await until(stage, agent, lambda s: s["link"] == "up" and s["link_error"] != "")
        await burst(stage, agent, bundle, samples(4))
    old.load_verify_locations(stage.hub.folder / "pki" / "trusted.pem")
    with pytest.raises(LinkLostError):
        await MqttTransport.connect("127.0.0.1", stage.hub.broker_port, "demo--d9", old)
    for agent in agents:
        renewals = (await stage.fetch_status(agent))["renewals"]
        await until(stage, agent, lambda s, n=renewals: s["renewals"] > n and s["link"] == "up")
        assert len(load_identity(agent.folder).trusted) == 1
    await settle(stage)
    for task in tasks:
        task.cancel()
    assert max(watch.longest_s for watch in watches) < max(5.0, start_s)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report


# The end


@pytest.fixture
def broker(stage: ProcessHarness) -> Iterator[OwnBroker]:
    with OwnBroker(stage.folder) as broker:
        yield broker


async def test_a_device_drains_retires_and_is_known_as_retired(stage, bundle, tmp_path, broker):
    await stage.start_hub(bundle.path, broker.for_the_hub)
    agent = await stage.add_agent("d1", bundle.path, policy(stage.folder, "answer_now"), QUICK)
    await stage.start_agent(agent)
    await stage.hub.child.stop()
    await burst(stage, agent, bundle, samples(30))
    assert (await stage.fetch_status(agent))["open"] > 0
    await agent.child.stop()
    await stage.hub.child.start()
    with contextlib.suppress(OSError):
        await stage._wait_until_ready(stage.hub.child, f"{stage.hub.url}/readyz")
    words = [sys.executable, str(ROOT / "skerry.py"), "agent", "retire", "--config", str(agent.child.config)]
    words += ["--ledger", str(tmp_path / "ledger.jsonl"), "--drain", "120", "--yes"]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "open questions left: 0" in done.stdout
    shown = await stage.call_admin("GET", "/v1/admin/devices/demo--d1")
    assert (shown["state"], shown["why"]) == ("retired", "device")
    assert shown["ledger_sha256"] in done.stdout
    outcomes = [json.loads(line).get("outcome") for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert {each["outcome"] for each in outcomes if each} == {"answered"}
    assert not list(agent.folder.glob("*.key"))
