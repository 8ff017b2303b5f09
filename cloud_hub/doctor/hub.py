"""The whole checkup of a hub, in the order in which one thing rests on another."""

import socket
from collections.abc import Iterable, Iterator
from functools import partial
from urllib.parse import urlsplit

from cloud_hub.doctor import machine
from cloud_hub.runtime.config import HubConfig
from cloud_hub.security.authority import utc_now
from cloud_hub.system.client import call_hub_api, read_running_address
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.findings import Check, Finding, Severity, judge_stop, run_checks

TIMEOUT_S = 5.0


class HubCheckup:
    """Checks of one hub, which may run or not."""

    def __init__(self, config: HubConfig) -> None:
        self._config = config
        self._state = config.state_dir()

    def run(self) -> Iterator[Finding]:
        """Every finding, as soon as it is there."""
        yield from run_checks(self._list_checks())

    def _list_checks(self) -> Iterable[tuple[str, Check]]:
        now = utc_now()
        yield "folder", partial(machine.check_folder, self._state)
        if self._state.root.is_dir():
            yield "authority", partial(machine.check_authority, self._state, now)
            yield "database", partial(machine.check_databases, self._config)
            yield "repository", partial(machine.check_repository, self._state, now)
        yield "models", partial(machine.check_models, self._config)
        yield "policies", partial(machine.check_policies, self._config)
        yield "broker", partial(machine.check_broker_program, self._config)
        yield "servers", partial(check_servers, self._config)
        if self._state.root.is_dir():
            yield "hub", self._check_hub

    def _check_hub(self) -> Iterator[Finding]:
        """Whether a hub runs here and says that it is ready; without one, whether its ports are free."""
        try:
            with FolderLock(self._state.root):
                pass
        except ExitError as error:
            if error.code is not ExitCode.LOCKED:
                raise
            yield self._ask_hub()
            return
        yield judge_stop("hub", self._state.running)
        yield from machine.check_ports(self._config)

    def _ask_hub(self) -> Finding:
        address = read_running_address(self._state.running)
        if address is None:
            return Finding("hub", Severity.WARNING, "it starts, or is another command at work", "look again soon")
        try:
            call_hub_api(address, "GET", "/v2/health/ready")
        except ExitError as error:
            return Finding(
                "hub", Severity.PROBLEM, f"runs, and is not ready: {error}", "see its log; skerry hub status"
            )
        return Finding("hub", Severity.FINE, f"runs at {address.url} and is ready")


def check_servers(config: HubConfig, timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Whether each server that models are asked of takes connections."""
    urls = [each.url for section in config.llm for each in section.addresses()]
    urls += [section.url for section in config.remote]
    for url in urls:
        where = urlsplit(url)
        try:
            port = where.port or (443 if where.scheme == "https" else 80)
            socket.create_connection((where.hostname or "", port), timeout_s).close()
        except OSError as error:
            text = f"{url}: {error.strerror or error or 'no answer'}"
            yield Finding("server", Severity.PROBLEM, text, "is it running, is the address right?")
            continue
        except ValueError as error:  # of a port, or of a name that cannot be looked up
            yield Finding("server", Severity.PROBLEM, f"{url}: {error}", "correct the address")
            continue
        yield Finding("server", Severity.FINE, f"{url} takes connections")
