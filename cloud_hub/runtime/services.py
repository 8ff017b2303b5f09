"""Services that a hub is given beside its engines and its broker."""

from collections.abc import Callable
from typing import NamedTuple

from cloud_hub.database.offload import OrderedWork
from cloud_hub.engine.card_energy import EnergyCounters
from cloud_hub.llm.service import LanguageModels
from cloud_hub.region.clock import RegionClock
from cloud_hub.region.lease_keeper import LeaseKeeper
from cloud_hub.registry.orders import Orders
from cloud_hub.runtime.jobs import JobServices
from cloud_hub.serving.bundles import BundleCatalog
from cloud_hub.serving.idempotency import RequestKeys
from cloud_hub.serving.telemetry import InferenceObserver
from cloud_hub.storage.versions import ModelUsageStore
from wire.process.logging import JsonLog


class HubServices(NamedTuple):
    """Optional services of a hub; each has a default that stores nothing."""

    log: JsonLog | None = None
    orders: Orders | None = None
    stock: BundleCatalog | None = None
    spoken: ModelUsageStore | None = None
    observer: InferenceObserver | None = None  # records batch times, and traced work as spans
    language_models: LanguageModels | None = None
    energy: EnergyCounters | None = None  # of graphics cards
    request_keys: RequestKeys | None = None  # Idempotency-Keys that hold at other hubs too
    work: OrderedWork | None = None  # where statements of the registry run
    leases: LeaseKeeper | None = None  # of the shards that it serves; without, it serves all of them
    rated: tuple[Callable[[int], None], ...] = ()  # told by how many hubs the region's rates are divided
    clock: RegionClock | None = None  # that all hubs of the region go by; without, this machine's
    jobs: JobServices = JobServices()
