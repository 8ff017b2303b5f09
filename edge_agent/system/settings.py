"""Every limit of a running agent in one frozen value, read once at start.

Where a running agent is reached: one small file in its state folder, there while it runs.
"""

from pathlib import Path

import msgspec

from edge_agent.core.commands import OutboxLimits
from edge_agent.system.environment import Attributes
from wire.process.files import write_private

__all__ = ["AgentSettings", "OutboxLimits", "name_of"]
TUF = "tuf:"  # before the name of a family or a policy of the update repository


def name_of(setting: str) -> str:
    """`digits` of `tuf:digits`; "" for a path."""
    return setting.removeprefix(TUF) if setting.startswith(TUF) else ""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`state_dir` holds `agent.db`. Sizes in bytes, times in seconds; the defaults suit a device with 256 MB."""

    state_dir: Path
    outbox: OutboxLimits = OutboxLimits()
    attributes: Attributes = Attributes()
    answers_max_rows: int = 200_000  # oldest go first, counted
    outcomes_max_rows: int = 1_000_000
    ledger_max_rows: int = 1_000_000  # oldest go first; the newest row is always kept: it numbers the next question
    pending_max_rows: int = 4096  # local answers waiting for the disk; beyond it they are dropped and counted
    flush_s: float = 0.05  # how long a local answer may wait for company in its commit
    frames_cache_bytes: int = 4 * 1024 * 1024  # sealed questions kept in memory; the rest is read back from disk
    inline_infer_s: float = 0.0005  # a slower model runs in its own thread: a hop costs 0.1 to 0.3 ms
    reconnect_base_s: float = 0.5
    reconnect_cap_s: float = 30.0
    connect_timeout_s: float = 10.0
    silent_after_s: float = 45.0  # a link that is up but silent while the hub owes us receipts is dropped
    watchdog_s: float = 1.0
    reopen_s: float = 10.0  # how often an unusable database is tried again
    upkeep_s: float = 60.0  # pruning, time floor
    heads_every_s: float = 900.0  # how often a hub is told how far the egress ledger has come
    recent_records: int = 1024
    prices: dict[str, int] = {}  # of one question, by hub; 0 for a hub that is not named
    look_s: float = 5.0  # how often battery, link cost and local time are looked at


ADDRESS_FILE = "api.json"


class Address(msgspec.Struct, frozen=True):
    """`url`: http://..., https://... or unix:PATH. The token itself stays in its own file."""

    url: str
    token_file: str = ""
    tls_cert: str = ""

    def save(self, state: Path) -> None:
        write_private(state / ADDRESS_FILE, msgspec.json.encode(self))
