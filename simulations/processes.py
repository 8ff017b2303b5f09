"""Starts a hub with its broker, and agents, as real processes in one folder; for demo, live tests and benchmarks.

Rule: everything it starts, it ends, by its own process ids; what it wrote is in its one folder. Its children get a
session of their own, so that Ctrl-C reaches this process alone, and end with it even if it is killed.
"""

import asyncio
import contextlib
import http
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import aiohttp
import tomli_w

from cloud_hub.repository.publish import create_demo_repository
from cloud_hub.repository.repository import Repository
from cloud_hub.repository.signing_keys import OnlineKeys
from cloud_hub.runtime.bootstrap import open_state
from cloud_hub.runtime.config import load_hub_config
from cloud_hub.security.hub_keys import HubCard
from cloud_hub.system.state_folder import StateDir
from edge_agent.identity.enrollment import enrol_device
from policies.language.document import parse_policy
from wire.process.exit_codes import ExitCode, ExitError

START_TIMEOUT_S = 120.0  # on a machine that does other things; a process that ends is noticed at once
STOP_TIMEOUT_S = 10.0
_POLL_S = 0.05
_LAST_LINES = 3
# The child asks the kernel to end it with us (PR_SET_PDEATHSIG = 1, Linux), then becomes the program.
FOLLOW_PARENT = (
    "import ctypes,os,sys\n"
    "if sys.platform=='linux':\n"
    " ctypes.CDLL(None).prctl(1,15)\n"
    "if os.getppid()!=int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.executable,[sys.executable,*sys.argv[2:]])\n"
)


@dataclass
class ChildProcess:
    """Child process `python -m module --config FILE`, its standard error in a file. `environment`: beside our own.

    `python`: of the environment whose Skerry it runs.
    """

    module: str
    config: Path
    log: Path
    process: asyncio.subprocess.Process | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable

    async def start(self) -> None:
        """Start the process with a session of its own; its standard error is appended to the log."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(self.python, "-P", "-c", FOLLOW_PARENT, str(os.getpid())),
                *("-P", "-m", self.module, "--config", str(self.config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id. ExitError(INTERNAL) if it was not started."""
        if self.process is None:
            raise ExitError(ExitCode.INTERNAL, f"{self.module} was not started")
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.returncode is None

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after 10 s; returns when it is gone."""
        if self.process is None or self.process.returncode is not None:
            return
        self._send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """SIGKILL: no clean shutdown, no flush."""
        self._send_signal(signal.SIGKILL)
        if self.process is not None:
            await self.process.wait()

    def _send_signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def log_tail(self) -> str:
        """The last lines of its log, for an error message."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return " | ".join(lines[-_LAST_LINES:]) or "it said nothing"


@dataclass
class AgentHandle:
    """One agent. `device` is its whole id, `url` its local API."""

    name: str
    device: str
    folder: Path
    url: str
    child: ChildProcess

    @property
    def database(self) -> Path:
        """The agent's database file."""
        return self.folder / "agent.db"


@dataclass
class HubHandle:
    """The hub: its state folder, web API, broker port and process. `server`: URL of its PostgreSQL database, if any."""

    folder: Path
    url: str
    broker_port: int
    child: ChildProcess
    server: str = ""

    @property
    def token(self) -> str:
        """Token of the hub's admin API."""
        return (self.folder / "admin.token").read_text().strip()

    @property
    def database(self) -> Path:
        """The hub's database file, where it has no server."""
        return self.folder / "hub.db"

    @property
    def questions(self) -> Path | str:
        """Where its questions are: its database file, or the URL of its server."""
        return self.server or self.database


@dataclass
class ProcessHarness:
    """Harness of real processes, as an async context manager; leaving it ends every process.

    `session` is an HTTP client for every API.
    """

    folder: Path
    hub: HubHandle | None = None
    agents: list[AgentHandle] = field(default_factory=list)
    session: aiohttp.ClientSession = field(init=False)

    async def __aenter__(self) -> Self:
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        await self.stop()

    async def stop(self) -> None:
        """Stop the agents first, so that the hub can answer what they drain; then the hub, which ends its broker."""
        await asyncio.gather(*(agent.child.stop() for agent in self.agents))
        if self.hub is not None:
            await self.hub.child.stop()

    async def start_hub(
        self,
        bundle: Path | Sequence[Path],
        extra: Mapping[str, Mapping[str, Any]] | None = None,
        policies: Sequence[Path] = (),
        also: Sequence[Path] = (),
        llm: Sequence[Mapping[str, Any]] = (),
    ) -> HubHandle:
        """Configure and start a hub that serves `bundle` or several, with a broker of its own; see `configure_hub`.

        Returns when it is ready.
        """
        hub = await self.configure_hub(bundle, extra, policies, also, llm)
        await self.launch_hub()
        return hub

    async def configure_hub(
        self,
        bundle: Path | Sequence[Path],
        extra: Mapping[str, Mapping[str, Any]] | None = None,
        policies: Sequence[Path] = (),
        also: Sequence[Path] = (),
        llm: Sequence[Mapping[str, Any]] = (),
    ) -> HubHandle:
        """Configure a hub without starting it; its ports and its broker's were free a moment ago.

        With `policies` it serves questions under these alone, by name as it has published them: its update
        repository has these, the bundles and its own keys. `also`: bundles that it serves and has not
        published. `extra`: tables of its configuration; `llm`: its language
        models.
        """
        bundles = [bundle] if isinstance(bundle, Path) else [*bundle]
        folder = self.folder / "hub"
        folder.mkdir(parents=True, exist_ok=True)
        api_port, broker_port = find_free_port(), find_free_port()
        tables: dict[str, Any] = {"api": {"port": api_port}, "broker": {"port": broker_port}}
        for name, table in (extra or {}).items():
            tables[name] = {**tables.get(name, {}), **table}
        config = folder / "hub.toml"
        values = {
            "state": str(folder / "state"),
            "models": [*map(str, bundles), *map(str, also)],
            "llm": [*llm],
            "policies": [f"tuf:{parse_policy(path.read_text(encoding='utf-8-sig')).name}" for path in policies],
        }
        config.write_text(tomli_w.dumps({**values, **tables}))
        child = ChildProcess("cloud_hub", config, folder / "hub.log")
        server = str(tables.get("store", {}).get("url", ""))
        self.hub = HubHandle(folder / "state", f"http://127.0.0.1:{api_port}", broker_port, child, server)
        if policies:
            await asyncio.to_thread(self._create_repository, config, bundles, policies)
        return self.hub

    async def launch_hub(self) -> None:
        """Start the configured hub, or one that was killed, and wait until it is ready."""
        if self.hub is None:
            raise ExitError(ExitCode.INTERNAL, "the stage has no hub yet")
        await self.hub.child.start()
        await self._wait_until_ready(self.hub.child, f"{self.hub.url}/readyz")

    async def add_agent(
        self, name: str, bundle: Path | str, policy: Path | str, extra: Mapping[str, Any] | None = None
    ) -> AgentHandle:
        """Invite an agent, enrol it with keys of its own, and write its configuration. Not started yet.

        `bundle`, `policy`: paths, or `tuf:NAME`. `extra`: tables and keys of its configuration.
        """
        folder = self.folder / name
        invite = await self.create_invite(f"demo--{name}")
        identity = await asyncio.to_thread(enrol_device, invite, folder)
        port = find_free_port()
        config = folder / "agent.toml"
        values = {"state": str(folder), "bundle": str(bundle), "policy": str(policy), "data_class": "open"}
        tables: dict[str, Any] = {"api": {"port": port}, **(extra or {})}
        config.write_text(tomli_w.dumps({**values, **tables}))
        child = ChildProcess("edge_agent", config, folder / "agent.log")
        handle = AgentHandle(name, identity.device, folder, f"http://127.0.0.1:{port}", child)
        self.agents.append(handle)
        return handle

    async def start_agent(self, agent: AgentHandle) -> None:
        """Start an agent and wait until it answers and has reached the hub."""
        await agent.child.start()
        await self.wait_ready(agent)
        await self.wait_for(agent, lambda status: status.get("link") == "up", "no link to the broker")

    @property
    def repository(self) -> Repository:
        """The hub's update repository, whether it runs or not: what is published here reaches devices."""
        if self.hub is None:
            raise ExitError(ExitCode.INTERNAL, "the stage has no hub yet")
        state = StateDir(self.hub.folder)
        return Repository(state.repository, OnlineKeys(state.online))

    def _create_repository(self, config: Path, bundles: Sequence[Path], policies: Sequence[Path]) -> None:
        """Create the repository before the hub runs, so that its first invite names the root already."""
        told = load_hub_config(config)
        keys = open_state(told).keys
        card = HubCard(told.hub.name, told.hub.region, keys.hpke_public, keys.signing_public)
        create_demo_repository(
            self.repository, card, bundles, [policy.read_bytes() for policy in policies], datetime.now(UTC)
        )

    async def wait_ready(self, agent: AgentHandle) -> None:
        """Wait until the agent is ready for samples."""
        await self._wait_until_ready(agent.child, f"{agent.url}/readyz")

    async def wait_for(self, agent: AgentHandle, test: Any, otherwise: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Poll the agent's status until `test(status)`; ExitError(INTERNAL) with `otherwise` after `timeout_s`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not test(await self.fetch_status(agent)):
            if asyncio.get_running_loop().time() > deadline:
                raise ExitError(ExitCode.INTERNAL, f"{agent.name}: {otherwise}: {agent.child.log_tail()}")
            await asyncio.sleep(_POLL_S)

    async def fetch_status(self, agent: AgentHandle) -> dict[str, Any]:
        """The agent's status document."""
        async with self.session.get(f"{agent.url}/v1/status") as response:
            body: dict[str, Any] = await response.json()
            return body

    async def create_invite(self, device: str) -> str:
        """Invite a device; returns the invite."""
        body = await self.call_admin("POST", "/v1/admin/invites", {"device": device})
        return str(body["invite"])

    async def call_admin(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the hub's admin API with its token. ExitError(HUB) with the hub's own line if it refuses."""
        if self.hub is None:
            raise ExitError(ExitCode.INTERNAL, "the stage has no hub yet")
        headers = {"Authorization": f"Bearer {self.hub.token}"}
        async with self.session.request(method, self.hub.url + path, json=body, headers=headers) as response:
            reply: dict[str, Any] = await response.json()
            if response.status >= 400:
                raise ExitError(ExitCode.HUB, f"{path}: {reply.get('error', response.status)}")
            return reply

    def broker_pid(self) -> int | None:
        """Process id of the hub's broker (a child of the hub); None while there is none."""
        return next(iter(list_children(self.hub.child.pid, "mosquitto")), None) if self.hub else None

    async def _wait_until_ready(self, child: ChildProcess, url: str) -> None:
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline:
            if not child.running:
                raise ExitError(ExitCode.INTERNAL, f"{child.module} ended at once: {child.log_tail()}")
            if await self._is_ready(url):
                return
            await asyncio.sleep(_POLL_S)
        raise ExitError(
            ExitCode.INTERNAL, f"{child.module} is not ready after {START_TIMEOUT_S:g} s: {child.log_tail()}"
        )

    async def _is_ready(self, url: str) -> bool:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with self.session.get(url) as response:
                return response.status == http.HTTPStatus.OK
        return False


def find_free_port() -> int:
    """A TCP port on loopback for a server that sets SO_REUSEADDR; nobody else is given it while this process lives."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = int(held.getsockname()[1])
        held.detach()  # it stays bound: the system chooses no port twice, and who names it may listen
    return port


def list_children(parent: int, program: str) -> list[int]:
    """Process ids of `parent`'s children that run `program` (Linux: /proc; elsewhere: ps)."""
    if not Path("/proc/self/stat").exists():
        return _list_children_ps(parent, program)
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            name, rest = (entry / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            if int(rest.split()[1]) == parent and name == program:
                found.append(int(entry.name))
    return found


def _list_children_ps(parent: int, program: str) -> list[int]:
    import subprocess  # noqa: PLC0415 - only where there is no /proc

    listing = subprocess.run(["ps", "-Ao", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    return [int(row[0]) for row in rows if int(row[1]) == parent and row[2].endswith(program)]
