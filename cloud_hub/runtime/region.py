"""What a running hub takes in of the other hubs of its region: one reader for each topic that it keeps in memory.

Rule: what is read here is read by the same functions as at the start, so that a change looks like a start after it.
"""

from cloud_hub.database.changes import Topic
from cloud_hub.region.membership import NewsReader
from cloud_hub.registry.access import ApiKeys, read_keys
from cloud_hub.registry.orders import Orders
from cloud_hub.registry.orders_store import read_orders
from cloud_hub.registry.registry import Registry, read_devices
from cloud_hub.runtime.hub import Hub
from cloud_hub.storage.retention import read_tombstones


def list_readers(hub: Hub, registry: Registry, keys: ApiKeys, orders: Orders) -> tuple[NewsReader, ...]:
    """Return the readers of every topic."""
    return (
        NewsReader(Topic.DEVICES, read_devices, registry.take_news),
        NewsReader(Topic.KEYS, read_keys, keys.take_news),
        NewsReader(Topic.ORDERS, lambda rows, _: read_orders(rows), lambda state, _: orders.take_news(state)),
        NewsReader(Topic.ERASURES, read_tombstones, lambda stones, _: hub.on_erased_elsewhere(stones)),
    )
