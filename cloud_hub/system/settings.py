"""What a running hub was told, once, at its start: one frozen value. `config` reads it from TOML and environment."""

import msgspec

from policies.model.policy import Policy
from wire.protocol.codec import MAX_FRAME_BYTES

DAY_S = 86_400.0


class HubSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and names. Sizes in bytes, times in seconds, rates per second.

    `policies` holds the hashes (32 hex characters) of the policies whose questions are served; empty = any, and the
    schema, label and region checks alone decide. `documents`: policies the hub has in full and evaluates again.
    """

    name: str = "hub-1"
    region: str = "local"
    database_url: str = "sqlite:///hub.db"
    policies: frozenset[str] = frozenset()
    documents: tuple[Policy, ...] = ()
    max_queued: int = 4096  # questions in memory, all devices together
    device_open: int = 1024  # of them, of one device
    device_rate_per_s: float = 1000.0
    device_burst: float = 2000.0
    tenant_rate_per_s: float = 20_000.0  # all devices and callers of one tenant together
    tenant_burst: float = 40_000.0
    max_wait_s: float = 30.0  # nothing is queued that would wait longer, as the engines are now
    held_back: float = 0.3  # share of the queue that questions of the lowest priority may not fill
    max_batch: int = 32
    max_loaded: int = 0  # models loaded at once, 0 = all: the others are loaded when they are asked for
    max_frame_bytes: int = MAX_FRAME_BYTES
    created_max_age_s: float = 7 * DAY_S  # a question of exactly this age is still taken
    created_max_ahead_s: float = 300.0  # one from exactly this far ahead too
    rows_live_s: float = 9 * DAY_S  # longer than a question may be replayed
    leave_file: str = ""  # once this file is there the hub drains and ends: its machine is taken away
    drain_s: float = 5.0  # at stop: how long questions under way may still be answered
