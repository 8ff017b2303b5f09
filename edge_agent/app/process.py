"""The agent's process: loads what a running agent is made of, starts it in order, stops it in the reverse order.

Rule: what can be wrong is found before the first sample: configuration, identity, model, policy, address. After that
only a signal, the end of the lines or a defect ends it.
"""

import asyncio
import contextlib
import importlib.metadata
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.api.app import ApiServer, build_app
from edge_agent.api.sources import Feed, Folder, Lines, read_lines
from edge_agent.app.agent import Agent
from edge_agent.app.config import AgentConfig
from edge_agent.core.hubs import HOME
from edge_agent.identity.hubs import Hubs, open_hubs
from edge_agent.identity.identity import Identity
from edge_agent.identity.identity import load as load_identity
from edge_agent.identity.renewal import Renewer
from edge_agent.inference.threshold import Threshold, open_thresholds
from edge_agent.system.clock import HubClock
from edge_agent.system.policy_layers import Layers, Standing, read_files
from edge_agent.system.settings import ADDRESS_FILE, Address, AgentSettings, name_of
from edge_agent.update.actions import InstallDependencies
from edge_agent.update.installed import FOLDER, Installed, Names, keys_path, look
from edge_agent.update.installer import Install
from edge_agent.update.machine import InstallMachine
from edge_agent.update.poller import Updates
from edge_agent.update.recovery import InstallTable, forgive_failed_start, recover_install
from edge_agent.update.worker_protocol import Follow, UpdateJob
from edge_agent.uplink.connection import dial
from models.bundle.bundle import open_bundle
from models.bundle.manifest import BundleError
from models.runtime.onnx_runner import OnnxRunner
from models.runtime.runner import Runner
from models.update.trust import path_fits
from policies.model.policy import PolicyError
from wire.http.guards import tls_context, token_of
from wire.process.daemon import notify, watchdog_every_s
from wire.process.exit_codes import Exit, ExitError
from wire.process.logging import Log, fault, name
from wire.transport.base import LinkLostError, Transport


class Parts(msgspec.Struct, frozen=True):
    """What the agent starts with. `runner` None: the first model is not here yet.

    `names`: what comes from the update repository, `installed`: what of it is here; None where there is no repository.
    `core`: the install machine, where a hub assigns what runs here.
    """

    identity: Identity
    runner: Runner | None
    standing: Standing
    names: Names | None = None
    installed: Installed = Installed()
    hubs: Hubs = Hubs({}, {})
    core: InstallMachine | None = None


def prepare(config: AgentConfig, *, starting: bool = False) -> Parts:
    """Load identity, policies and model; ExitError(ENROLMENT, CREDENTIALS, MODEL, POLICY) for whatever cannot be used.

    `starting`: the process will serve, and owns the folder: its start counts for a model on trial.
    """
    identity = load_identity(Path(config.state))
    identity.tls()
    names = _names(config, identity)
    core, shun = _machine(config, identity, names) if names and starting else (None, "")
    try:
        return _prepared(config, identity, names, core, shun)
    except ExitError:
        if core:
            forgive_failed_start(Path(config.state) / FOLDER, core.row)
        raise


def _prepared(
    config: AgentConfig, identity: Identity, names: Names | None, core: InstallMachine | None, shun: str
) -> Parts:
    hubs = open_hubs(config.hub, identity)
    found = look(Path(config.state) / FOLDER, names, shun=shun) if names else Installed()
    standing = _standing(config.layers(), found)
    tls_context(config.door())
    token_of(config.door())
    if name_of(config.bundle):
        return Parts(
            identity=identity, runner=found.runner, standing=standing, names=names, installed=found, hubs=hubs,
            core=core,
        )  # fmt: skip
    try:
        return Parts(
            identity=identity, runner=OnnxRunner(open_bundle(config.bundle), config.threads), standing=standing,
            names=names, installed=found, hubs=hubs,
        )  # fmt: skip
    except BundleError as error:
        raise ExitError(Exit.MODEL, str(error)) from None


def _machine(config: AgentConfig, identity: Identity, names: Names) -> tuple[InstallMachine | None, str]:
    """The install machine after its recovery, which comes before any model is loaded.

    Also the digest of a bundle that must not serve, "" for none.
    """
    if not names.family or Follow(config.updates.follow) is not Follow.ASSIGNMENTS:
        return None, ""
    folder = Path(config.state) / FOLDER
    core = InstallMachine(identity.device, InstallTable(folder).read(), config.install_limits())
    return core, recover_install(folder, names, core, HubClock(identity.hub_time_ms).ms())


def _names(config: AgentConfig, identity: Identity) -> Names | None:
    """What to take from the update repository; None for a device that was enrolled without one."""
    family, policies = name_of(config.bundle), config.layers().published
    if not identity.tuf_url:
        if family or policies:
            raise ExitError(
                Exit.ENROLMENT, "this device was enrolled without an update repository: enrol it again to use tuf:"
            )
        return None
    regions = tuple(dict.fromkeys(hub.region for hub in identity.hubs))
    names = Names(family, policies, tuple(filter(_is_plain, regions)), version(), config.threads)
    if not all(map(_is_plain, filter(None, (family, *policies)))):
        raise ExitError(Exit.CONFIG, "tuf: must be followed by a name of small letters, digits, '_' and '-'")
    return names


def _is_plain(word: str) -> bool:
    return path_fits(keys_path(word))


def _standing(layers: Layers, found: Installed) -> Standing:
    """The policy layers in force; without any there is no policy, and nothing may leave.

    Raises ExitError(POLICY) for layers that cannot be used, or not together.
    """
    try:
        return Standing(read_files(layers), found.policies if layers.published else ())
    except PolicyError as error:
        raise ExitError(Exit.POLICY, f"policy: {error}") from None


async def _no_link() -> Transport:
    """The connector of an air-gapped device: it never connects."""
    raise LinkLostError("airgap = true: there is no link")


class Process:
    """One running agent with its API, updates and renewals.

    `lines`: also answer JSON lines from stdin, and end with them.
    """

    def __init__(self, config: AgentConfig, parts: Parts, log: Log, *, lines: bool = False) -> None:
        self._config = config
        self._parts = parts
        self._log = log
        self._lines = lines
        self._standing = parts.standing
        self._ended = asyncio.Event()
        identity = parts.identity
        settings = msgspec.structs.replace(config.settings(), prices=parts.hubs.prices)
        clock = HubClock(identity.hub_time_ms)
        self._renewer = Renewer(identity, clock, log)
        hubs = {} if config.airgap else parts.hubs.further
        self._renewers = {line: Renewer(each, clock, log) for line, each in hubs.items()}
        connect = _no_link if config.airgap else {HOME: self._renewer, **self._renewers}
        self._agent = Agent(settings, identity, parts.runner, parts.standing.policy, connect, clock=clock)
        self._agent.add_side(self._renewer)
        if config.thresholds:
            kept = Path(config.state)
            self._agent.calibrate(Threshold(open_thresholds(Path(config.thresholds)), config.device.kind, kept))
        fetches = config.updates.enabled and not config.airgap
        self._updates = self._updating(parts.names) if parts.names and fetches else None
        self._install: Install | None = None
        if self._updates:
            self._agent.add_side(self._updates)
            self._assigned(self._updates)
        self._state = Path(config.state)

    async def run(self) -> None:
        """Run until a signal, the end of the lines, or a defect. ExitError(PORT, DATABASE, ...) if it cannot start."""
        self._obey_signals()
        try:
            await self._agent.open()
            if self._parts.installed.hubs:
                self._agent.use_hubs(self._parts.installed.hubs)  # they replace those of the enrolment
            server = await self._open_api()
        except ExitError:
            if self._install:
                self._install.close()
            self._agent.stop()
            await self._agent.run()  # asked to stop before it began: closes what it opened
            raise
        try:
            async with asyncio.TaskGroup() as group:
                await self._work(group, server)
        finally:
            (self._state / ADDRESS_FILE).unlink(missing_ok=True)

    async def _work(self, group: asyncio.TaskGroup, server: ApiServer | None) -> None:
        agent = group.create_task(self._agent.run(), name="agent")
        sides = [group.create_task(work, name=title) for title, work in self._sides().items()]
        agent.add_done_callback(lambda _: self._ended.set())
        notify("READY=1")
        model = self._agent.manifest.model if self._agent.manifest else "none"
        self._log.info("serving", device=name(self._parts.identity.device), model=name(model))
        await self._ended.wait()
        notify("STOPPING=1")
        for side in sides:
            side.cancel()
        if server:
            await server.stop()
        self._agent.stop()

    def _sides(self) -> dict[str, Any]:
        """Named tasks beside the agent's own."""
        sides: dict[str, Any] = {}
        if not self._config.airgap:
            sides["renewal"] = self._renewer.run(self._agent.reconnect)
        for line, renewer in self._renewers.items():
            sides[f"renewal-{line}"] = renewer.run(partial(self._renewed, line, renewer))
        if self._install:
            sides["install"] = self._install.run()
        if self._updates:
            sides["updates"] = self._updates.run(self._agent, self._config.updates.every_s)
        folder = self._config.folder
        if folder.path:
            feed = self._feed(folder.data_class or self._config.data_class)
            sides["folder"] = Folder(Path(folder.path), feed, folder.every_s, self._log).run()
        if self._lines:
            sides["lines"] = self._answer_lines()
        every_s = watchdog_every_s()
        if every_s is not None:
            sides["watchdog"] = _feed_watchdog(every_s)
        return sides

    async def _renewed(self, line: str, renewer: Renewer) -> None:
        self._agent.use_further(line, renewer.identity.hubs)
        await self._agent.reconnect(line)

    async def _answer_lines(self) -> None:
        def write(line: bytes) -> None:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

        await Lines(self._feed(self._config.data_class), write).run(read_lines(sys.stdin.fileno()))
        self._ended.set()

    def _feed(self, data_class: str) -> Feed:
        return Feed(self._agent, data_class)

    async def _open_api(self) -> ApiServer | None:
        if not self._config.api.enabled:
            return None
        door = self._config.door()
        limits = self._config.infer_limits()
        app = build_app(self._agent, door, limits=limits, version=version())
        server = ApiServer(app, door)
        url = await server.start()
        Address(url, door.token_file, door.tls_cert if url.startswith("https") else "").save(self._state)
        self._log.info("listening", address=name(url))
        return server

    def _obey_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload_policy)

    def _updating(self, names: Names) -> Updates:
        return Updates(
            folder=Path(self._config.state) / FOLDER, names=names, job=partial(self._job, names),
            start=self._parts.installed, log=self._log, standing=self._standing,
        )  # fmt: skip

    def _job(self, names: Names) -> UpdateJob:
        """The update worker's job as of now."""
        identity = self._renewer.identity
        safe = self._install is not None and self._install.machine.row.safe
        return UpdateJob(
            folder=str(Path(self._config.state) / FOLDER), url=identity.tuf_url, root=identity.tuf_root,
            least_ms=identity.hub_time_ms, hub_url=identity.hub_url, authorities=identity.trusted,
            documents=names.documents, family=names.family, agent=names.agent,
            follow=Follow.NONE if safe else Follow(self._config.updates.follow),
        )  # fmt: skip

    def _assigned(self, updates: Updates) -> None:
        """Create the installer; a model that was on trial before is on trial still."""
        names, core, committed = self._parts.names, self._parts.core, self._parts.installed.committed
        if names is None or core is None:
            return
        folder, metered = Path(self._config.state) / FOLDER, self._config.updates.metered
        tools = InstallDependencies(
            folder=folder, names=names, job=partial(self._job, names), busy=updates.busy, log=self._log,
            metered=metered,
        )  # fmt: skip
        self._install = Install(core, tools, updates)
        self._agent.assign(self._install)
        if committed is not None:
            self._agent.answering.beside(committed)

    def _reload_policy(self) -> None:
        """SIGHUP: read the policy files again.

        One that is unsound, older, or changed under the same version changes nothing.
        """
        layers = self._config.layers()
        if layers.published:
            self._agent.refresh()
        if not layers.files:
            return
        try:
            taken = self._standing.take_files(read_files(layers))
        except (ExitError, PolicyError) as error:
            self._log.error("policy_refused", error=fault(error))
            return
        if taken is None:
            self._log.error("policy_refused", error=name("not_newer"))
            return
        self._agent.use_policy(taken)
        self._log.info("policy_taken", policy=name(taken.hash))


async def _feed_watchdog(every_s: float) -> None:
    """Notify systemd's watchdog, from a task of the loop, so that a loop that hangs is noticed."""
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(every_s)


def version() -> str:
    """The installed version of the software; "0" outside an installation."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("skerry")
    return "0"


_LOOK_S = 0.1


async def drain(parts: Parts, settings: AgentSettings, within_s: float) -> int:
    """Run an agent for its open questions alone: no samples and no API, until none is open or the time is over.

    Returns how many questions are still open. The caller holds the folder's lock.
    """
    clock = HubClock(parts.identity.hub_time_ms)
    credentials = Renewer(parts.identity, clock, Log(least="error"))
    connect = dial(credentials, settings.connect_timeout_s)
    agent = Agent(settings, parts.identity, parts.runner, parts.standing.policy, connect, clock=clock)
    await agent.open()
    if parts.installed.hubs:
        agent.use_hubs(parts.installed.hubs)
    running = asyncio.create_task(agent.run(), name="agent")
    deadline = asyncio.get_running_loop().time() + within_s
    while agent.status()["open"] and asyncio.get_running_loop().time() < deadline and not running.done():
        await asyncio.wait({running}, timeout=_LOOK_S)
    left = int(agent.status()["open"])
    agent.stop()
    await running
    return left
