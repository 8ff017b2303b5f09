"""The generated configuration against the real Mosquitto: what a device may do, and what becomes of the child."""

import asyncio
import io
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from cloud_hub.runtime.broker import Broker, BrokerSettings, BrokerTls
from cloud_hub.security.authority import DEVICE_LIFE, Authority, encode_certificate, utc_now
from tests import ROOT
from tests.cloud_hub.doubles.joiner import Joiner
from wire.errors import LocalError
from wire.process.logging import JsonLog
from wire.protocol.codec import MAX_FRAME_BYTES
from wire.protocol.topics import HUB_NAME, HUB_NAMES, TopicChannel, build_topic, list_hub_filters
from wire.transport.base import DeliveryOutcome, IncomingMessage, LinkLostError
from wire.transport.mqtt import MqttTransport

pytestmark = pytest.mark.live
A, B = "demo--a", "demo--b"
CONNECT_S = 60.0
AT_ONCE_S = 20.0  # a broker that says nothing would cost CONNECT_S
QUIET_S = 0.3  # long enough on loopback for a message that should not come


class Site:
    """One broker with its authority, and connections to it."""

    def __init__(self, folder: Path, devices: int = 10) -> None:
        self.folder = folder
        self.log = io.StringIO()
        self.authority = Authority.open(folder, utc_now())
        server = self.authority.ensure_server(folder, (), utc_now())
        settings = BrokerSettings(folder / "broker", port=0, devices=devices)
        settings.folder.mkdir(exist_ok=True)
        self.broker = Broker(settings, BrokerTls(server, folder / "ca.pem"), JsonLog(self.log))
        self._open: list[MqttTransport] = []

    def tls(self, name: str, issued: datetime | None = None, authority: Authority | None = None) -> ssl.SSLContext:
        """As a device named `name` would make it from its enrolment."""
        joiner = Joiner()
        certificate = (authority or self.authority).issue_device(joiner.csr().encode(), name, issued or utc_now())
        (self.folder / "device.pem").write_text(encode_certificate(certificate))
        (self.folder / "device.key").write_bytes(joiner.key_pem())
        context = ssl.create_default_context(cafile=self.folder / "ca.pem")
        context.load_cert_chain(self.folder / "device.pem", self.folder / "device.key")
        return context

    async def connect(
        self, name: str, client_id: str = "", tls: ssl.SSLContext | None = None, session_expiry_s: int = 0
    ) -> MqttTransport:
        link = await MqttTransport.connect(
            "127.0.0.1",
            self.broker.port,
            client_id or name,
            tls or self.tls(name),
            session_expiry_s=session_expiry_s,
            timeout_s=CONNECT_S,
        )
        self._open.append(link)
        return link

    async def hub(self) -> MqttTransport:
        link = await self.connect(HUB_NAME)
        await link.subscribe(list_hub_filters())
        return link

    async def close(self) -> None:
        for link in self._open:
            await link.close()
        await self.broker.stop()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = Site(tmp_path)
    await opened.broker.start()
    yield opened
    await opened.close()


async def nothing_comes(link: MqttTransport) -> bool:
    try:
        await asyncio.wait_for(link.receive(), QUIET_S)
    except TimeoutError:
        return True
    return False


async def refused_after_s(site: Site, tls: ssl.SSLContext) -> float:
    began = time.perf_counter()
    with pytest.raises(LinkLostError):
        await site.connect(A, tls=tls)
    return time.perf_counter() - began


async def test_question_reaches_the_hub_and_reply_the_device(site):
    hub, device = await site.hub(), await site.connect(A)
    await device.subscribe((build_topic(A, TopicChannel.REPLY),))
    assert await device.post(build_topic(A, TopicChannel.QUESTION), b"question") is DeliveryOutcome.TAKEN
    assert await hub.receive() == [IncomingMessage(build_topic(A, TopicChannel.QUESTION), b"question")]
    assert await hub.post(build_topic(A, TopicChannel.REPLY), b"reply") is DeliveryOutcome.TAKEN
    assert await device.receive() == [IncomingMessage(build_topic(A, TopicChannel.REPLY), b"reply")]


@pytest.mark.parametrize("channel", list(TopicChannel))
async def test_publish_on_the_topic_of_another_device_is_denied_and_told(site, channel):
    hub, device = await site.hub(), await site.connect(A)
    assert await device.post(build_topic(B, channel), b"forged") is DeliveryOutcome.DENIED
    assert await nothing_comes(hub)


@pytest.mark.parametrize(
    "attack",
    ["v1/00/demo--a/down/r", "v1/00/demo--a/up/q/more", "v1/00/demo--a", "other", "$SYS/broker/uptime", "$CONTROL/x"],
)
async def test_publish_outside_the_own_subtree_is_denied(site, attack):
    device = await site.connect(A)
    assert await device.post(attack, b"x") is DeliveryOutcome.DENIED


@pytest.mark.parametrize(
    "pattern",
    [
        "#",
        "+/+/+/down/r",
        f"v1/+/{B}/down/r",
        "v1/#",
        f"$share/g/v1/+/{B}/down/r",
        "$share/g/#",
        "$SYS/#",
        "$CONTROL/#",
    ],
)
async def test_no_pattern_brings_a_device_the_replies_of_another(site, pattern):
    hub, device = await site.connect(HUB_NAME), await site.connect(A)
    try:
        await device.subscribe((pattern,))
    except LinkLostError:
        return  # refused at once: better still
    await hub.post(build_topic(B, TopicChannel.REPLY), b"for b")
    assert await nothing_comes(device)


async def test_a_device_cannot_listen_to_questions(site):
    spy, device = await site.connect(A), await site.connect(B)
    await spy.subscribe((*list_hub_filters(), build_topic(B, TopicChannel.QUESTION)))
    await device.post(build_topic(B, TopicChannel.QUESTION), b"sealed")
    assert await nothing_comes(spy)


async def test_without_a_certificate_the_refusal_is_fast(site):
    assert await refused_after_s(site, ssl.create_default_context(cafile=site.folder / "ca.pem")) < AT_ONCE_S


async def test_expired_certificate_is_refused_fast(site):
    expired = site.tls(A, issued=utc_now() - DEVICE_LIFE - timedelta(minutes=1))
    assert await refused_after_s(site, expired) < AT_ONCE_S


async def test_certificate_not_yet_valid_is_refused_fast(site):
    assert await refused_after_s(site, site.tls(A, issued=utc_now() + timedelta(hours=1))) < AT_ONCE_S


async def test_certificate_of_another_authority_is_refused_fast(site, tmp_path):
    (tmp_path / "other").mkdir()
    other = Authority.open(tmp_path / "other", utc_now())
    assert await refused_after_s(site, site.tls(A, authority=other)) < AT_ONCE_S


async def test_server_certificate_does_not_open_a_client_door(site):
    context = ssl.create_default_context(cafile=site.folder / "ca.pem")
    context.load_cert_chain(site.folder / "server.pem", site.folder / "server.key")
    assert await refused_after_s(site, context) < AT_ONCE_S


async def test_client_id_of_another_device_takes_nothing_over(site):
    hub, victim = await site.connect(HUB_NAME), await site.connect(B, session_expiry_s=60)
    await victim.subscribe((build_topic(B, TopicChannel.REPLY),))
    attacker = await site.connect(A, client_id=B, session_expiry_s=60)
    assert not attacker.session_present
    await hub.post(build_topic(B, TopicChannel.REPLY), b"for b")
    assert await victim.receive() == [IncomingMessage(build_topic(B, TopicChannel.REPLY), b"for b")]
    assert await nothing_comes(attacker)


async def test_client_id_of_the_hub_takes_nothing_over(site):
    hub = await site.hub()
    await site.connect(A, client_id=HUB_NAME)
    device = await site.connect(B)
    await device.post(build_topic(B, TopicChannel.QUESTION), b"question")
    assert await hub.receive() == [IncomingMessage(build_topic(B, TopicChannel.QUESTION), b"question")]


async def test_a_hub_that_joins_is_heard_by_devices_as_the_first_one_is(site):
    hub, device = await site.connect(HUB_NAMES[-1]), await site.connect(B)
    await hub.subscribe(list_hub_filters())
    await device.subscribe((build_topic(B, TopicChannel.REPLY),))
    await device.post(build_topic(B, TopicChannel.QUESTION), b"question")
    assert await hub.receive() == [IncomingMessage(build_topic(B, TopicChannel.QUESTION), b"question")]
    await hub.post(build_topic(B, TopicChannel.REPLY), b"answer")
    assert await device.receive() == [IncomingMessage(build_topic(B, TopicChannel.REPLY), b"answer")]


async def test_the_announced_limit_takes_our_largest_frame_and_no_more(site):
    hub, device = await site.hub(), await site.connect(A)
    assert MAX_FRAME_BYTES < device.max_packet_bytes < MAX_FRAME_BYTES * 2
    with pytest.raises(LocalError):
        device.post(build_topic(A, TopicChannel.QUESTION), bytes(MAX_FRAME_BYTES + 1))
    assert await device.post(build_topic(A, TopicChannel.QUESTION), bytes(MAX_FRAME_BYTES)) is DeliveryOutcome.TAKEN
    assert len((await hub.receive())[0].payload) == MAX_FRAME_BYTES


async def test_a_burst_while_the_hub_is_away_waits_for_it(site):
    hub = await site.connect(HUB_NAME, session_expiry_s=60)
    await hub.subscribe(list_hub_filters())
    await hub.close()
    device = await site.connect(A)
    await asyncio.gather(*(device.post(build_topic(A, TopicChannel.QUESTION), b"%d" % n) for n in range(900)))
    back = await site.connect(HUB_NAME, session_expiry_s=60)
    got = 0
    async with asyncio.timeout(60):
        while got < 900:
            got += len(await back.receive())
    assert got == 900


async def test_killed_broker_is_back_on_its_port(site):
    device = await site.connect(A)
    watch = asyncio.create_task(site.broker.supervise())
    os.kill(site.broker.pid, signal.SIGKILL)
    with pytest.raises(LinkLostError):
        await device.receive()
    async with asyncio.timeout(60):
        while not await connects(site):
            await asyncio.sleep(0.02)
    assert site.broker.restarts == 1
    await site.close()
    await watch


async def connects(site: Site) -> bool:
    try:
        await site.connect(A)
    except LinkLostError:
        return False
    return True


async def test_damaged_queue_file_does_not_keep_the_broker_down(tmp_path):
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "mosquitto.db").write_bytes(os.urandom(4096))
    site = Site(tmp_path)
    await site.broker.start()
    assert await connects(site)
    await site.close()
    assert list((tmp_path / "broker").glob("mosquitto.db.damaged*"))


PARENT = """
import asyncio, io, os, sys
from pathlib import Path
from tests.live.broker.test_broker import Site

async def main():
    site = Site(Path(sys.argv[1]))
    await site.broker.start()
    print(site.broker.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_kill_9_of_the_parent_leaves_no_broker(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert running(child)
        parent.kill()
        # The pipe ends only if the broker did not inherit it: a shell's `| tee` must not hang on an orphan.
        assert parent.stdout.read() == ""
    deadline = time.monotonic() + 60
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(child)


def running(pid: int) -> bool:
    """Whether it is there and no mere zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
