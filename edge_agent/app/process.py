"""The agent's process: loads what a running agent is made of, starts it in order, stops it in the reverse order.

Rule: what can be wrong is found before the first sample: configuration, identity, model, policy, address. After that
only a signal, the end of the lines or a defect ends it.
"""

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edge_agent.app.agent import Agent
from edge_agent.app.config import AgentConfig
from edge_agent.app.lines import AgentPrerequisites, LinesOptions, answer_stdin
from edge_agent.app.reloading import AgentReload
from edge_agent.app.sources import check_input, check_sources, make_feed, start_sources
from edge_agent.app.status import start_tracing
from edge_agent.identity.hubs import AdditionalHubs, load_additional_hubs
from edge_agent.identity.identity import Identity, load_identity
from edge_agent.identity.renewal import Renewer, renew_in_child
from edge_agent.inference.class_threshold import CalibratedThreshold, load_thresholds
from edge_agent.outputs.supervisor import OutputOwner, Outputs
from edge_agent.question.questions import HOME
from edge_agent.sources.json_lines import LinesResult
from edge_agent.system.clock import HubClock
from edge_agent.system.policy_layers import PolicyLayers, PolicyStack, read_policy_files
from edge_agent.system.settings import ADDRESS_FILE, ApiAddress, name_of
from edge_agent.update.actions import InstallDependencies
from edge_agent.update.installed import (
    UPDATES_FOLDER_NAME,
    InstalledUpdates,
    RepositoryNames,
    keys_target_path,
    read_installed,
)
from edge_agent.update.installer import Installer
from edge_agent.update.machine import InstallMachine
from edge_agent.update.poller import Updates
from edge_agent.update.recovery import InstallTable, forgive_failed_start, recover_install
from edge_agent.update.worker_protocol import FollowMode, UpdateJob
from models.bundle.bundle import open_bundle
from models.bundle.manifest import BundleError
from models.runtime.onnx_runner import OnnxRunner
from models.runtime.runner import Runner
from models.update.trust import is_target_path
from policies.model.policy import PolicyError
from wire.http.access import build_tls_context, load_token
from wire.process.daemon import notify_systemd, read_watchdog_interval
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog, safe_name, safe_text
from wire.process.packages import read_version
from wire.transport.base import LinkLostError, Transport

_OUTPUTS_WAIT_S = 5.0  # for outputs, once the last line has its answer
_SAVE_AGAIN_S = 5.0

if TYPE_CHECKING:
    from edge_agent.api.app import ApiServer


class StartupState(msgspec.Struct, frozen=True):
    """What the agent starts with. `runner` None: the first model is not here yet.

    `names`: what comes from the update repository, `installed`: what of it is here; None where there is no repository.
    `core`: the install machine, where a hub assigns what runs here.
    """

    identity: Identity
    runner: Runner | None
    standing: PolicyStack
    names: RepositoryNames | None = None
    installed: InstalledUpdates = InstalledUpdates()
    hubs: AdditionalHubs = AdditionalHubs({}, {})
    core: InstallMachine | None = None


def prepare_startup(config: AgentConfig, *, starting: bool = False) -> StartupState:
    """Load identity, policies and model; ExitError(ENROLMENT, CREDENTIALS, MODEL, POLICY) for whatever cannot be used.

    `starting`: the process will serve, and owns the folder: its start counts for a model on trial.
    """
    identity = load_identity(Path(config.state))
    identity.tls_context()
    names = _repository_names(config, identity)
    core, shun = _recover_machine(config, identity, names) if names and starting else (None, "")
    try:
        parts = _load_startup(config, identity, names, core, shun)
        check_sources(config)
        check_input(config, parts.runner.manifest if parts.runner else None)
    except ExitError:
        if core:
            forgive_failed_start(Path(config.state) / UPDATES_FOLDER_NAME, core.row)
        raise
    return parts


def _load_startup(
    config: AgentConfig, identity: Identity, names: RepositoryNames | None, core: InstallMachine | None, shun: str
) -> StartupState:
    hubs = load_additional_hubs(config.hub, identity)
    found = read_installed(Path(config.state) / UPDATES_FOLDER_NAME, names, shun=shun) if names else InstalledUpdates()
    standing = _load_policies(config.policy_layers(), found)
    build_tls_context(config.api_access())
    load_token(config.api_access())
    if name_of(config.bundle):
        return StartupState(
            identity=identity, runner=found.runner, standing=standing, names=names, installed=found, hubs=hubs,
            core=core,
        )  # fmt: skip
    if not Path(config.bundle).exists():
        raise ExitError(ExitCode.MISSING, f"{config.bundle}: no such bundle")
    try:
        return StartupState(
            identity=identity, standing=standing, names=names, installed=found, hubs=hubs,
            runner=OnnxRunner(open_bundle(config.bundle), config.threads, config.chosen_providers),
        )  # fmt: skip
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None


def _recover_machine(
    config: AgentConfig, identity: Identity, names: RepositoryNames
) -> tuple[InstallMachine | None, str]:
    """The install machine after its recovery, which comes before any model is loaded.

    Also the digest of a bundle that must not serve, "" for none.
    """
    if not names.family or FollowMode(config.updates.follow) is not FollowMode.ASSIGNMENTS:
        return None, ""
    folder = Path(config.state) / UPDATES_FOLDER_NAME
    core = InstallMachine(identity.device, InstallTable(folder).read_row(), config.install_limits())
    return core, recover_install(folder, names, core, HubClock(identity.hub_time_ms).hub_ms())


def _repository_names(config: AgentConfig, identity: Identity) -> RepositoryNames | None:
    """What to take from the update repository; None for a device that was enrolled without one."""
    family, policies = name_of(config.bundle), config.policy_layers().published
    if not identity.tuf_url:
        if family or policies:
            raise ExitError(ExitCode.ENROLMENT, f"tuf: is of no use yet: {identity.explain_missing_updates()}")
        return None
    regions = tuple(dict.fromkeys(hub.region for hub in identity.hubs))
    names = RepositoryNames(
        family,
        policies,
        tuple(filter(_is_plain_name, regions)),
        read_version(),
        config.threads,
        config.chosen_providers,
    )
    if not all(map(_is_plain_name, filter(None, (family, *policies)))):
        raise ExitError(ExitCode.CONFIG, "tuf: must be followed by a name of small letters, digits, '_' and '-'")
    return names


def _is_plain_name(word: str) -> bool:
    return is_target_path(keys_target_path(word))


def _load_policies(layers: PolicyLayers, found: InstalledUpdates) -> PolicyStack:
    """The policy layers in force; without any there is no policy, and nothing may leave.

    Raises ExitError(POLICY) for layers that cannot be used, or not together.
    """
    try:
        return PolicyStack(read_policy_files(layers), found.policies if layers.published else ())
    except PolicyError as error:
        raise ExitError(ExitCode.POLICY, f"policy: {error}") from None


async def _refuse_link() -> Transport:
    """The connector of an air-gapped device: it never connects."""
    raise LinkLostError("airgap = true: there is no link")


class AgentProcess:
    """One running agent with its API, updates and renewals. `file`: where the configuration is read from again.

    `lines`: also answer JSON lines from stdin, and end with them.
    """

    def __init__(
        self,
        config: AgentConfig,
        parts: StartupState,
        log: JsonLog,
        *,
        lines: LinesOptions | None = None,
        file: Path | None = None,
    ) -> None:
        self._config = config
        self._parts = parts
        self._log = log
        self._lines = lines
        self._answered = LinesResult()
        self._standing = parts.standing
        self._ended = asyncio.Event()
        identity = parts.identity
        self._settings = settings = msgspec.structs.replace(
            config.agent_settings(), prices=parts.hubs.prices, log_level=config.log_level
        )
        self._proxy = config.link.link_route().forward_proxy
        renew = partial(renew_in_child, proxy=self._proxy)
        self._renewer = Renewer(identity, clock := HubClock(identity.hub_time_ms), log, errand=renew)
        hubs = {} if config.airgap else parts.hubs.further
        self._renewers = {line: Renewer(each, clock, log, errand=renew) for line, each in hubs.items()}
        connect = _refuse_link if config.airgap else {HOME: self._renewer, **self._renewers}
        self._agent = Agent(settings, identity, parts.runner, parts.standing.policy, connect, clock=clock)
        self._agent.add_status_provider(self._renewer)
        self._reload = AgentReload(file, config, self._agent, log)
        self._reloads: set[asyncio.Task[None]] = set()
        self._one_reload = asyncio.Lock()
        self._server: ApiServer | None = None
        self._address: ApiAddress | None = None
        if config.thresholds:
            kept = Path(config.state)
            self._agent.set_threshold(
                CalibratedThreshold(load_thresholds(Path(config.thresholds)), config.device.kind, kept)
            )
        fetches = config.updates.enabled and not config.airgap
        self._updates = self._make_updates(parts.names) if parts.names and fetches else None
        self._install: Installer | None = None
        self._tracing = start_tracing(self._agent, config.trace.endpoint, identity.device, log)
        if self._updates:
            self._agent.add_status_provider(self._updates)
            self._attach_installer(self._updates)
        self._state = Path(config.state)
        owner = OutputOwner(
            service=self._agent, gate=self._agent.answering, device=identity.device, client=identity.client_name,
            software=read_version(), state=self._state, airgap=config.airgap,
        )  # fmt: skip
        self._outputs = Outputs(config.output, owner, log)
        if config.output:
            self._agent.add_status_provider(self._outputs)

    async def run(self) -> None:
        """Run until a signal, the end of the lines, or a defect. ExitError(PORT, DATABASE, ...) if it cannot start.

        ExitError(NONE_ANSWERED) if there were lines and every one of them failed.
        """
        self._handle_signals()
        try:
            await self._agent.open()
            if self._parts.installed.hubs:
                self._agent.use_hubs(self._parts.installed.hubs)  # they replace those of the enrolment
            server = self._server = await self._open_api()
        except ExitError:
            if self._install:
                self._install.close()
            self._agent.stop()
            await self._agent.run()  # asked to stop before it began: closes what it opened
            raise
        try:
            async with asyncio.TaskGroup() as group:
                await self._run_tasks(group, server)
        finally:
            (self._state / ADDRESS_FILE).unlink(missing_ok=True)
            if self._tracing:
                self._tracing.close()
            self._log.info("stopped")
        if self._answered.failed and not self._answered.answered:
            raise ExitError(
                ExitCode.NONE_ANSWERED, f"none of {self._answered.failed} lines was answered; each says why on stdout"
            )

    async def _run_tasks(self, group: asyncio.TaskGroup, server: "ApiServer | None") -> None:
        agent = group.create_task(self._agent.run(), name="agent")
        sides = [group.create_task(work, name=title) for title, work in self._make_tasks().items()]
        agent.add_done_callback(lambda _: self._ended.set())
        notify_systemd("READY=1")
        model = self._agent.manifest.model if self._agent.manifest else "none"
        self._log.info("serving", device=safe_name(self._parts.identity.device), model=safe_name(model))
        await self._ended.wait()
        self._log.info("stopping")
        notify_systemd("STOPPING=1")
        for side in sides:
            side.cancel()
        if server:
            await server.stop()
        self._agent.stop()

    def _make_tasks(self) -> dict[str, Any]:
        """Named tasks beside the agent's own."""
        sides: dict[str, Any] = {}
        if self._address is not None:
            sides["address"] = self._save_address(self._address)
        if not self._config.airgap:
            sides["renewal"] = self._renewer.run(self._agent.reconnect)
        for line, renewer in self._renewers.items():
            sides[f"renewal-{line}"] = renewer.run(partial(self._on_renewed, line, renewer))
        if self._install:
            sides["install"] = self._install.run()
        if self._updates:
            sides["updates"] = self._updates.run(self._agent, self._config.updates.every_s)
        sides |= start_sources(self._config, self._agent, self._log)
        if self._outputs.has_work:
            sides["outputs"] = self._outputs.run()
        if self._lines:
            sides["lines"] = self._answer_lines(self._lines)
        every_s = read_watchdog_interval()
        if every_s is not None:
            sides["watchdog"] = _feed_watchdog(every_s)
        return sides

    async def _on_renewed(self, line: str, renewer: Renewer) -> None:
        self._agent.use_line_hubs(line, renewer.identity.hubs)
        await self._agent.reconnect(line)

    async def _answer_lines(self, options: LinesOptions) -> None:
        """Answer stdin's lines, then end."""
        names = self._parts.names
        needed = AgentPrerequisites(policy=names is not None and bool(names.policies), link=not self._config.airgap)
        self._answered = await answer_stdin(make_feed(self._config, self._agent), needed, options, self._log)
        await self._outputs.catch_up(await self._agent.last_event(), _OUTPUTS_WAIT_S)
        self._ended.set()

    async def _open_api(self) -> "ApiServer | None":
        if not self._config.api.enabled:
            return None
        from edge_agent.api.app import ApiServer, build_app  # noqa: PLC0415 - 9 MB, for an agent with an API

        access = self._config.api_access()
        limits = self._config.infer_limits()
        app = build_app(
            self._agent, access, limits=limits, version=read_version(), policy=lambda: self._standing.policy
        )
        server = ApiServer(app, access)
        url = await server.start()
        self._address = ApiAddress(url, access.token_file, access.tls_cert if url.startswith("https") else "")
        self._log.info("listening", address=safe_name(url))
        return server

    async def _save_address(self, address: ApiAddress) -> None:
        """Write where the API listens, for this device's commands; a full disk is waited for."""
        warned = False
        while True:
            try:
                address.save(self._state)
            except ExitError as error:
                if not warned:
                    self._log.error("address_not_written", why=safe_text(str(error)))
                warned = True
                await asyncio.sleep(_SAVE_AGAIN_S)
            else:
                return

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload_config)

    def _make_updates(self, names: RepositoryNames) -> Updates:
        return Updates(
            folder=Path(self._config.state) / UPDATES_FOLDER_NAME, names=names, job=partial(self._make_job, names),
            start=self._parts.installed, log=self._log, standing=self._standing,
        )  # fmt: skip

    def _make_job(self, names: RepositoryNames) -> UpdateJob:
        """The update worker's job as of now."""
        identity = self._renewer.identity
        safe = self._install is not None and self._install.machine.row.safe
        return UpdateJob(
            folder=str(Path(self._config.state) / UPDATES_FOLDER_NAME), url=identity.tuf_url, root=identity.tuf_root,
            least_ms=identity.hub_time_ms, hub_url=identity.hub_url, authorities=identity.trusted,
            documents=names.documents, family=names.family, agent=names.agent,
            follow=FollowMode.NONE if safe else FollowMode(self._config.updates.follow), proxy=self._proxy,
        )  # fmt: skip

    def _attach_installer(self, updates: Updates) -> None:
        """Create the installer; a model that was on trial before is on trial still."""
        names, core, committed = self._parts.names, self._parts.core, self._parts.installed.committed
        if names is None or core is None:
            return
        folder, metered = Path(self._config.state) / UPDATES_FOLDER_NAME, self._config.updates.metered
        tools = InstallDependencies(
            folder=folder, names=names, job=partial(self._make_job, names), busy=updates.busy, log=self._log,
            metered=metered,
        )  # fmt: skip
        self._install = Installer(core, tools, updates)
        self._agent.attach_installer(self._install)
        if committed is not None:
            self._agent.answering.restore_trial(committed)

    def _reload_config(self) -> None:
        """SIGHUP: read the configuration again, after a reload that still runs."""
        task = asyncio.get_running_loop().create_task(self._run_reload(), name="reload")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _run_reload(self) -> None:
        async with self._one_reload:
            self._settings = await self._reload.reload(self._settings, self._standing, self._server)


async def _feed_watchdog(every_s: float) -> None:
    """Notify systemd's watchdog, from a task of the loop, so that a loop that hangs is noticed."""
    while True:
        notify_systemd("WATCHDOG=1")
        await asyncio.sleep(every_s)
