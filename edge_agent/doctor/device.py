"""The whole checkup of a device, in the order in which one thing rests on another."""

import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from edge_agent.app.config import AgentConfig, load_config, load_proxy
from edge_agent.doctor import machine, network
from edge_agent.identity.identity import Identity, load_identity
from edge_agent.system.settings import ADDRESS_FILE
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.findings import Check, Finding, Severity, judge_stop, run_checks
from wire.transport.routes import DIRECT, LinkRoute


class DeviceCheckup:
    """Checks of one device. `config`: None where there is only a state folder. `online`: others are asked too."""

    def __init__(self, folder: Path, config: AgentConfig | None, *, online: bool = True) -> None:
        self._folder = folder
        self._config = config
        self._online = online
        self._identity: Identity | None = None

    def run(self) -> Iterator[Finding]:
        """Every finding, as soon as it is there."""
        yield from run_checks(self._list_local())
        if self._identity is None:
            yield Finding("network", Severity.SKIPPED, "not looked at: there is no identity to show")
        elif self._config is not None and self._config.airgap:
            yield Finding("network", Severity.FINE, "airgap = true: there is no link")
        elif self._online:
            yield from run_checks(self._list_remote(self._identity))

    def _list_local(self) -> Iterable[tuple[str, Check]]:
        now_ms = int(time.time() * 1000)
        yield "folder", partial(machine.check_folder, self._folder)
        yield "identity", self._check_identity
        if self._identity is not None:
            hub_ms = max(now_ms, self._identity.hub_time_ms)
            yield "secrets", partial(machine.check_secrets, self._folder)
            yield "certificate", partial(machine.check_certificate, self._identity, hub_ms)
            yield "database", partial(machine.check_database, self._folder)
        yield "agent", self._check_agent
        if self._config is not None:
            yield "model", partial(machine.check_model, self._config)
            yield "policy", partial(machine.check_policy, self._config, now_ms)

    def _check_identity(self) -> Iterator[Finding]:
        self._identity = load_identity(self._folder)
        yield Finding("identity", Severity.FINE, self._identity.device)

    def _check_agent(self) -> Iterator[Finding]:
        """Whether an agent runs here; without one, whether its address is free."""
        try:
            with FolderLock(self._folder):
                pass
        except ExitError as error:
            if error.code is not ExitCode.LOCKED:
                raise
            yield Finding("agent", Severity.FINE, "runs; `skerry agent status` shows its link")
            return
        yield judge_stop("agent", self._folder / ADDRESS_FILE)
        if self._config is not None:
            yield from machine.check_address(self._config)

    def _list_remote(self, identity: Identity) -> Iterable[tuple[str, Check]]:
        now_s = time.time()
        yield "clock", partial(network.check_clock, identity, now_s)
        route = self._config.link.link_route() if self._config else LinkRoute("", *load_proxy(None))
        if route == DIRECT:
            yield "name", partial(network.check_name, identity)
        yield "broker", partial(network.check_broker, identity, route)
        yield "hub", partial(network.check_hub, identity, now_s, route.forward_proxy)
        yield "repository", partial(network.check_repository, identity, now_s, route.forward_proxy)


def open_checkup(folder: Path | None, config: Path | None, *, online: bool) -> DeviceCheckup:
    """The checkup that the options name. ExitError(CONFIG) for a configuration that cannot be used."""
    loaded = load_config(config) if config else None
    return DeviceCheckup(folder or Path(loaded.state if loaded else "."), loaded, online=online)
