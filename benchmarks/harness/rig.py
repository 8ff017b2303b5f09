"""Test rig of the live benchmarks: one broker as the hub configures it, and hub and agent processes on it.

The broker is started here, not by the hub, so that the echo (the floor) and the hub meet the same one. All else is
`simulations.processes`, as in the demo and the live tests.
"""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from cloud_hub.runtime.broker import Broker, BrokerSettings, BrokerTls
from cloud_hub.security.authority import Authority, utc_now
from cloud_hub.system.state_folder import StateDir
from edge_agent.identity.identity import Identity, load_identity
from simulations.processes import AgentHandle, HubHandle, ProcessHarness
from wire.process.logging import JsonLog
from wire.protocol.topics import HUB_NAME

ROOT = Path(__file__).parents[2]
POLICY = """
schema = 2
name = "bench"
version = 1
issued = 2026-01-01
expires = 2099-12-31
[escalation]
mode = "{mode}"
threshold = {threshold}
audit_share = 0.0
budget_s = 10.0
[egress]
ceiling = "P2"
[[egress.field]]
name = "features"
level = "P2"
[egress.data_class]
open = true
[locality]
hubs = ["hub-1"]
regions = ["local"]
[retention]
purpose = "benchmark"
[budget]
bytes_per_day = 1_000_000_000
max_open = 10_000
"""


class BenchmarkRig:
    """Broker, hub and agents of a benchmark.

    Everything lies in `folder`, which the caller removes. Enter it with `async with`.
    """

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.folder, self.bundle = folder, bundle
        self.stage = ProcessHarness(folder)
        self.state = StateDir(folder / "hub" / "state").prepare()
        pki = self.state.certificates
        authority = Authority.open(pki, utc_now())
        server = authority.ensure_server(pki, (), utc_now())
        self.ca, self.hub_pair = pki / "ca.pem", authority.ensure_client(pki, HUB_NAME, utc_now())
        log = JsonLog((folder / "broker.log").open("a", encoding="utf-8"))
        self.broker = Broker(BrokerSettings(self.state.broker, port=0), BrokerTls(server, self.ca), log)

    async def __aenter__(self) -> Self:
        await self.broker.start()
        await self.stage.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stage.__aexit__()
        await self.broker.stop()

    @asynccontextmanager
    async def run_hub(self) -> AsyncIterator[HubHandle]:
        """The real hub process, ready to serve, for as long as the block lasts."""
        broker = {"start": False, "host": "127.0.0.1", "port": self.broker.port}
        hub = await self.stage.start_hub(self.bundle, {"broker": broker})
        try:
            yield hub
        finally:
            await hub.child.stop()

    async def add_agent(self, name: str, mode: str = "answer_now", threshold: float = 0.9) -> AgentHandle:
        """Invite and enrol a device over HTTP as people do; the hub must be running. Its process is not started."""
        policy = self.folder / f"{name}.policy.toml"
        policy.write_text(POLICY.format(mode=mode, threshold=threshold))
        return await self.stage.add_agent(name, self.bundle, policy)

    async def enrol_devices(self, count: int) -> list[Identity]:
        """Enrolled devices without a process."""
        return [load_identity((await self.add_agent(f"device-{number}")).folder) for number in range(count)]

    @property
    def as_hub(self) -> tuple[str, str, str, str]:
        """What a child needs to take the hub's place on the broker: port, CA, certificate, key."""
        return str(self.broker.port), str(self.ca), str(self.hub_pair.certificate), str(self.hub_pair.key)


def hub_context(ca: str, certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificate, key)
    return context


@asynccontextmanager
async def run_child(
    module: str, *words: str, log: Path, tree: Path = ROOT, stdin: int = asyncio.subprocess.DEVNULL
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m module words` of a source tree, ended with the block; stdout is a pipe, stderr goes to `log`."""
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *words),
            cwd=tree,
            env={name: value for name, value in os.environ.items() if not name.startswith("SKERRY_")},
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def read_line(process: asyncio.subprocess.Process, timeout_s: float = 60.0) -> str:
    """The next line a child prints. RuntimeError if it ends without one."""
    if process.stdout is None:
        raise RuntimeError("this child has no stdout")
    text = (await asyncio.wait_for(process.stdout.readline(), timeout_s)).decode().strip()
    if not text:
        raise RuntimeError("a child process of the benchmark ended early; its log lies in the benchmark's folder")
    return text
