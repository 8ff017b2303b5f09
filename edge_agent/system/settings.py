"""Limits of a running agent in one frozen value, read once at start, and the address file of its local API."""

from pathlib import Path

import msgspec

from edge_agent.question.limits import OutboxLimits
from edge_agent.system.energy import EnergySettings
from edge_agent.system.environment import DeviceAttributes
from wire.process.files import write_private_file
from wire.transport.routes import DIRECT, LinkRoute

__all__ = ["AgentSettings", "OutboxLimits", "name_of"]
# Where the proxy is named while there is no configuration yet, as at the enrolment; they go over a file too.
PROXY_VARIABLES = ("SKERRY_AGENT_LINK__PROXY", "SKERRY_AGENT_LINK__PROXY_CREDENTIALS_FILE")
TUF_PREFIX = "tuf:"  # prefix of the name of a model family or policy in the update repository


def name_of(setting: str) -> str:
    """The published name in a setting: `digits` of `tuf:digits`; "" for a path."""
    return setting.removeprefix(TUF_PREFIX) if setting.startswith(TUF_PREFIX) else ""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All limits of a running agent; sizes in bytes, times in seconds.

    `state_dir` holds `agent.db`. The defaults suit a device with 256 MB of memory.
    """

    state_dir: Path
    log_level: str = "warning"  # least that is logged: info, warning or error
    outbox: OutboxLimits = OutboxLimits()
    attributes: DeviceAttributes = DeviceAttributes()
    energy: EnergySettings = EnergySettings()
    answers_max_rows: int = 200_000  # oldest go first, counted
    outcomes_max_rows: int = 1_000_000
    ledger_max_rows: int = 1_000_000  # oldest go first; the newest row is always kept: it numbers the next question
    pending_max_rows: int = 4096  # local answers waiting for the disk; beyond it they are dropped and counted
    answers_every_s: float = 30.0  # records of purely local answers are written so often, in one commit
    flush_s: float = 0.05  # the same while an event stream is open, which shows committed records alone
    frames_cache_bytes: int = 4 * 1024 * 1024  # sealed questions kept in memory; the rest is read back from disk
    inline_infer_s: float = 0.0005  # a slower model runs in its own thread: a hop costs 0.1 to 0.3 ms
    reconnect_base_s: float = 0.5
    reconnect_cap_s: float = 30.0
    connect_timeout_s: float = 10.0
    route: LinkRoute = DIRECT  # to the home broker
    silent_after_s: float = 45.0  # a connection without traffic while receipts are due is dropped
    watchdog_s: float = 1.0
    reopen_s: float = 10.0  # how often an unusable database is tried again
    upkeep_s: float = 60.0  # interval of pruning and of storing the time floor
    heads_every_s: float = 900.0  # how often a signed head of the egress ledger is sent to a hub
    recent_records: int = 1024
    prices: dict[str, int] = {}  # price of one question by hub name; 0 for others
    look_s: float = 5.0  # how often battery, link cost and local time are read

    def for_line(self, line: str) -> "AgentSettings":
        """The settings of a line: the address of a WebSocket is of the home broker ("") alone, a proxy serves all."""
        if not line or not self.route.websocket:
            return self
        return msgspec.structs.replace(self, route=self.route._replace(websocket=""))


ADDRESS_FILE = "api.json"


class ApiAddress(msgspec.Struct, frozen=True):
    """Address of the running agent's local API, kept in `api.json` of the state folder while it runs.

    `url`: http://..., https://... or unix:PATH. The token itself stays in its own file.
    """

    url: str
    token_file: str = ""
    tls_cert: str = ""

    def save(self, state: Path) -> None:
        """Write `api.json`, readable by the owner alone."""
        write_private_file(state / ADDRESS_FILE, msgspec.json.encode(self))
