"""A site's own broker: a Mosquitto with a user and a password, none of the hub's, and a client that is none of ours."""

import asyncio
import contextlib
import getpass
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import aiomqtt

from cloud_hub.runtime.broker import find_program
from simulations.processes import find_free_port

USER, PASSWORD = "site", "pass word"


class SiteMosquitto:
    """As a context it runs. `folder` gets its files; `keys`: what a configuration says to reach it."""

    def __init__(self, folder: Path) -> None:
        self.port = find_free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        passwords = folder / "site.passwords"
        subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, USER, PASSWORD], check=True)
        secret = folder / "site.password"
        secret.write_text(PASSWORD + "\n")
        secret.chmod(0o600)
        lines = (
            f"user {getpass.getuser()}", f"listener {self.port} 127.0.0.1", "allow_anonymous false",
            f"password_file {passwords}", "set_tcp_nodelay true",
        )  # fmt: skip
        (folder / "site.conf").write_text("\n".join(lines) + "\n")

    @property
    def keys(self) -> str:
        return f'broker = "mqtt://127.0.0.1:{self.port}"\nusername = "{USER}"\npassword_file = "site.password"\n'

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        words = [find_program(), "-c", str(self._folder / "site.conf")]
        with (self._folder / "site.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[aiomqtt.Client]:
        """A client on paho-mqtt, once the broker listens."""
        for _ in range(600):
            with contextlib.suppress(aiomqtt.MqttError):
                async with aiomqtt.Client("127.0.0.1", self.port, username=USER, password=PASSWORD) as client:
                    yield client
                    return
            await asyncio.sleep(0.05)
        raise AssertionError((self._folder / "site.log").read_text())


class Heard:
    """What a client hears: every message, and the last of each topic that is retained."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Any]] = []
        self.last: dict[str, Any] = {}

    async def listen(self, client: aiomqtt.Client) -> None:
        await client.subscribe("#", qos=1)
        with contextlib.suppress(aiomqtt.MqttError):  # the broker was stopped
            await self._listen(client)

    async def _listen(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            said = bytes(message.payload) if isinstance(message.payload, bytes) else b""
            content = json.loads(said) if said[:1] in (b"{", b"[") else said.decode()
            self.messages.append((str(message.topic), content))
            self.last[str(message.topic)] = content

    def of(self, topic: str) -> list[Any]:
        return [content for name, content in self.messages if name == topic]
