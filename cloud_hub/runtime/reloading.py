"""Reload of a running hub's configuration, at SIGHUP: the file, the policies it names, and its certificate's files.

Rule: everything is read and checked before anything is changed; what cannot be used leaves all as it was.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from cloud_hub.core.admission import LiveLimits
from cloud_hub.runtime.config import HubConfig, load_hub_config
from cloud_hub.runtime.policies import PolicyEntry, PolicyReader, PolicyWatcher, compile_policies, is_published
from cloud_hub.storage.prices import PriceList
from cloud_hub.system.config_base import flatten_config
from policies.model.policy import Policy
from wire.http.access import build_tls_context
from wire.process.exit_codes import ExitError
from wire.process.logging import JsonLog
from wire.process.reload import ConfigChange, ReloadRecord

_LIMITS = ("max_queued", "device_open", "device_rate_per_s", "device_burst", "tenant_rate_per_s", "tenant_burst",
           "max_wait_s", "held_back")  # fmt: skip
# What a running hub takes. `policies`: as long as it has some before and after, and none is the first published one.
LIVE_KEYS = ("policies", "costs.", *(f"hub.{name}" for name in _LIMITS))


class LivePolicies(NamedTuple):
    """The policies of a running hub: how they are replaced, and who follows their publication."""

    serve: Callable[[tuple[Policy, ...]], Awaitable[None]]
    watcher: PolicyWatcher


class HubReload:
    """Reads a hub's configuration again when `told` is set, and hands what changed to whoever goes by it.

    `file`: None for a hub that has its configuration from the environment alone.
    """

    def __init__(self, file: Path | None, config: HubConfig, published: PolicyReader, log: JsonLog) -> None:
        self.told = asyncio.Event()
        self.record = ReloadRecord(flatten_config(config), LIVE_KEYS, log)
        self.prices: PriceList = config.price_list()
        self._file = file
        self._config = config  # as it started
        self._entries = config.policies
        self._published = published

    def read_prices(self) -> PriceList:
        """The prices that count now."""
        return self.prices

    def status_fields(self) -> dict[str, Any]:
        """Fields of the hub's status."""
        return self.record.status_fields()

    async def run(
        self,
        limits: LiveLimits,
        policies: LivePolicies,
        around: tuple[Callable[[], Awaitable[None]], Callable[[], int]],
    ) -> None:
        """Reload whenever it is told to, for ever.

        `around`: loads the certificate's files again; tells hub time in ms.
        """
        reload_certificate, now_ms = around
        while True:
            await self.told.wait()
            self.told.clear()
            try:
                config = await asyncio.to_thread(load_hub_config, self._file)
                change = self._compare(config)
                entries = config.policies if "policies" in change.live else self._entries
                found = await asyncio.to_thread(compile_policies, entries, self._published)
                build_tls_context(self._config.server_access())
            except ExitError as error:
                self.record.note_refused(error)
                continue
            more = await self._replace_policies(policies, entries, found)
            limits.replace(config.hub_settings(self._published), now_ms() / 1000)
            self.prices = self._config.model_copy(update={"costs": config.costs}).price_list()
            await reload_certificate()
            self.record.note_taken(flatten_config(config), change, more)

    def _compare(self, config: HubConfig) -> ConfigChange:
        change = self.record.compare(flatten_config(config))
        if "policies" not in change.live:
            return change
        before, after = self._entries, config.policies
        if before and after and (is_published(before) or not is_published(after)):
            return change
        live = tuple(key for key in change.live if key != "policies")
        return ConfigChange(live, tuple(sorted({*change.restart, "policies"})))

    async def _replace_policies(
        self, policies: LivePolicies, entries: tuple[PolicyEntry, ...], found: tuple[Policy, ...]
    ) -> tuple[str, ...]:
        """Serve these policies; those served before stay until the next publication, as devices follow later."""
        self._entries = entries
        before = policies.watcher.follow(entries, found)
        if not entries or found == before:
            return ()
        await policies.serve((*found, *(each for each in before if each not in found)))
        return ("the policies' texts",)
