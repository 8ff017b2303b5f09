"""What a running hub takes in of the other hubs of its region: changes of what it keeps in memory, and shared files.

Rule: what is read here is read by the same functions as at the start, so that a change looks like a start after it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.database.changes import Topic
from cloud_hub.database.errors import log_fault
from cloud_hub.region.file_sync import SyncPlan
from cloud_hub.region.membership import NewsReader
from cloud_hub.region.shared_files import SharedFiles
from cloud_hub.registry.access import ApiKeys, read_keys
from cloud_hub.registry.orders import Orders
from cloud_hub.registry.orders_store import read_orders
from cloud_hub.registry.registry import Registry, read_devices
from cloud_hub.runtime.hub import Hub
from cloud_hub.storage.ledger_log import read_flawed
from cloud_hub.storage.retention import read_tombstones
from cloud_hub.storage.versions import read_retired, read_uses
from wire.process.exit_codes import ExitError
from wire.process.logging import JsonLog, describe_error, safe_name

SYNC_EVERY_S = 1.0


def list_readers(
    hub: Hub, registry: Registry, keys: ApiKeys, orders: Orders, files: "FileFollower"
) -> tuple[NewsReader, ...]:
    """Return the readers of every topic."""
    return (
        NewsReader(Topic.DEVICES, read_devices, registry.take_news),
        NewsReader(Topic.KEYS, read_keys, keys.take_news),
        NewsReader(Topic.ORDERS, lambda rows, _: read_orders(rows), lambda state, _: orders.take_news(state)),
        NewsReader(Topic.ERASURES, read_tombstones, lambda stones, _: hub.on_erased_elsewhere(stones)),
        NewsReader(Topic.MODELS, read_retired, lambda models, _: hub.versions.take_retired(models)),
        NewsReader(Topic.USES, read_uses, lambda uses, _: hub.versions.take_uses(uses)),
        NewsReader(Topic.FLAWS, lambda rows, _: read_flawed(rows), lambda devices, _: hub.voice.take_flaws(devices)),
        NewsReader(Topic.FILES, lambda _rows, _paths: None, lambda _nothing, _revision: files.wake()),
    )


class FileFollower:
    """Keeps the files of a hub and those of its region alike while it runs.

    `on_keys` is called when the hub's keys were changed by another hub, `on_ca` when its CAs were.
    """

    def __init__(
        self,
        shared: SharedFiles,
        on_keys: Callable[[], None],
        on_ca: Callable[[], Awaitable[None]],
        log: JsonLog,
    ) -> None:
        self._shared = shared
        self._on_keys = on_keys
        self._on_ca = on_ca
        self._log = log
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look at once: another hub has changed something."""
        self._wake.set()

    async def run(self) -> None:
        """Look once a second and when woken, until cancelled. What fails is logged and tried again."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), SYNC_EVERY_S)
            self._wake.clear()
            try:
                await self._take_in(await asyncio.to_thread(self._shared.sync))
            except SQLAlchemyError as error:
                log_fault(self._log, "region_files", error)
            except ExitError as error:
                self._log.error("region_files", error=describe_error(error))

    async def _take_in(self, plan: SyncPlan) -> None:
        for path in plan.conflicts:
            self._log.error("region_file_lost", file=safe_name(path.rpartition("/")[2]))  # the region's counts
        changed = (*plan.fetch, *plan.remove)
        if any(path.startswith(("keys/hpke-", "keys/reply")) for path in changed):
            self._on_keys()
        if any(path.startswith("pki/") for path in changed):
            await self._on_ca()
