"""Settings of a running hub: one frozen value, read from TOML and environment by `cloud_hub.runtime.config`."""

import msgspec

from policies.model.policy import Policy
from policies.serving.scaling import ScalingRules
from wire.protocol.codec import MAX_FRAME_BYTES
from wire.protocol.topics import HUB_NAME

DAY_S = 86_400.0


class HubSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and names of a hub. Sizes in bytes, times in seconds, rates per second.

    `policies`: hashes (32 hex characters) of the policies whose questions are served; empty = any, and only the
    schema, label and region checks decide. `documents`: policies the hub has in full and evaluates again.
    """

    name: str = "hub-1"
    member: str = HUB_NAME  # which of the region's hubs this is
    region: str = "local"
    database_url: str = "sqlite:///hub.db"
    policies: frozenset[str] = frozenset()
    documents: tuple[Policy, ...] = ()
    max_queued: int = 4096  # questions in memory, all devices together
    device_open: int = 1024  # of these, of one device
    device_rate_per_s: float = 1000.0
    device_burst: float = 2000.0
    tenant_rate_per_s: float = 20_000.0  # all devices and callers of one tenant together
    tenant_burst: float = 40_000.0
    max_wait_s: float = 30.0  # what would wait longer at the present throughput is refused
    held_back: float = 0.3  # share of the queue that the lowest priority may not use
    max_batch: int = 32
    gather_s: float = 0.01  # how long questions may wait to share a commit while the hub is busy, 0 = never
    max_loaded: int = 0  # models loaded at once, 0 = all; the others are loaded on demand
    max_loaded_bytes: int = 0  # of their weights together, 0 = no limit
    scaling: dict[str, ScalingRules] = {}  # of models whose replicas follow their load, by `digits` or `digits@7`
    obeys_scaling: bool = True  # False: the number is told to whoever starts replicas elsewhere
    max_frame_bytes: int = MAX_FRAME_BYTES
    created_max_age_s: float = 7 * DAY_S  # inclusive
    created_max_ahead_s: float = 300.0  # inclusive
    rows_live_s: float = 9 * DAY_S  # longer than a question may be replayed
    leave_file: str = ""  # the hub drains and ends once this file exists (its machine is being taken away)
    drain_s: float = 5.0  # at stop: how long questions in progress may still be answered
