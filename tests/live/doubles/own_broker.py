"""A Mosquitto that a test runs itself: the product's configuration, a few lines changed, and a tap on every topic."""

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from cloud_hub.runtime.bootstrap import open_state
from cloud_hub.runtime.broker import BrokerSettings, BrokerTls, find_program, render_config
from cloud_hub.runtime.config import HubConfig
from cloud_hub.security.authority import CertificateFiles, utc_now
from simulations.processes import find_free_port
from wire.protocol.topics import render_broker_acl
from wire.transport.base import LinkLostError
from wire.transport.mqtt import MqttTransport


class OwnBroker:
    """As a context it runs, and is gone at the end, however that comes about.

    `folder` is the stage's, `state` the hub's if it is none of a stage: its certificates are made before it starts.
    `edits`: key -> value.
    """

    def __init__(self, folder: Path, edits: dict[str, str] | None = None, state: Path | None = None) -> None:
        self.port = find_free_port()
        self.state = state or folder / "hub" / "state"
        self.ground = open_state(HubConfig(state=self.state))
        settings = BrokerSettings(self.ground.state.broker, port=self.port)
        lines = render_config(settings, BrokerTls(self.ground.server, self.ground.ca_file)).splitlines()
        changed = [f"{line.split()[0]} {(edits or {}).get(line.split()[0], line.partition(' ')[2])}" for line in lines]
        (settings.folder / "acl").write_text("user tap\ntopic read #\n\n" + render_broker_acl())
        self.config = settings.folder / "own.conf"
        self.config.write_text("\n".join(changed) + "\n")
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        with (self.config.parent / "own.log").open("ab") as log:
            words = [find_program(), "-c", str(self.config)]
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def for_the_hub(self) -> dict[str, dict[str, object]]:
        """The hub's configuration for a broker that somebody else runs."""
        return {"broker": {"start": False, "port": self.port}}

    def context(self, pair: CertificateFiles) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ground.ca_file)
        context.load_cert_chain(pair.certificate, pair.key)
        return context

    async def connect(self, name: str) -> MqttTransport:
        """A client with a certificate for `name`; waits until the broker accepts."""
        pair = self.ground.authorities.ensure_client(name, utc_now())
        context = self.context(pair)
        for _ in range(3000):
            with contextlib.suppress(LinkLostError):
                return await MqttTransport.connect("127.0.0.1", self.port, name, context)
            await asyncio.sleep(0.02)
        raise AssertionError((self.config.parent / "own.log").read_text())


@contextlib.asynccontextmanager
async def tapped(broker: OwnBroker) -> AsyncIterator[list[bytes]]:
    """Everything the broker carries, either way, topic and payload."""
    tap = await broker.connect("tap")
    await tap.subscribe(("#",))
    carried: list[bytes] = []

    async def listen() -> None:
        with contextlib.suppress(LinkLostError):
            while True:
                carried.extend(message.topic.encode() + b" " + message.payload for message in await tap.receive())

    listening = asyncio.create_task(listen())
    try:
        yield carried
    finally:
        listening.cancel()
        await tap.close()
