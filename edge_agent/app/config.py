"""The agent's configuration: the sections of its TOML file, and its environment (`SKERRY_AGENT_API__PORT=8090`)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from edge_agent.api.oip import InferLimits
from edge_agent.app.source_config import CameraSection
from edge_agent.core.limits import LinkEnergy
from edge_agent.outputs.settings import MAX_OUTPUTS, OUTPUT_PATHS, OutputSection, validate_outputs
from edge_agent.sources.sensor_settings import MAX_SENSORS, SENSOR_PATHS, SensorSection, validate_sensors
from edge_agent.system.energy import STATED_LINKS, EnergySettings, LinkKind, MeterKind
from edge_agent.system.environment import POWER_SUPPLY, DeviceAttributes
from edge_agent.system.policy_layers import PolicyLayers, parse_layers
from edge_agent.system.settings import AgentSettings, OutboxLimits, name_of
from edge_agent.update.types import InstallLimits
from models.bundle.preparation import Preparation, parse_preparation
from wire.http.guards import ServerAccess, is_loopback, validate_access
from wire.process.config import (
    ConfigSection,
    ProcessConfig,
    build_config,
    find_nearest_key,
    find_sections,
    list_known_keys,
    make_absolute,
)
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_toml_file
from wire.transport.clients import MqttClient
from wire.transport.routes import DIRECT, LinkRoute, check_route

PREFIX = "SKERRY_AGENT_"
_OUTBOX = OutboxLimits()
_AGENT = AgentSettings(state_dir=Path())
_LIMITS = InstallLimits()
_ENERGY = EnergySettings()
_ROUTE = {"websocket", "proxy", "proxy_credentials_file"}
_DATA_CLASS = r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$"


class _Section(ConfigSection):
    model_config = ConfigDict(allow_inf_nan=False)


class ApiSection(_Section):
    """The local API. An address that is not loopback needs `tls_cert`, `tls_key` and `token_file`.

    `names`: further host names that callers may use. `port` 0: any free one, printed at start. `unix` beats host and
    port.
    """

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = Field(default=8090, ge=0, le=65535)
    unix: str = Field(default="", max_length=100)
    names: tuple[str, ...] = ()
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)
    max_batch: int = Field(default=256, ge=1, le=4096)


class FolderSection(_Section):
    """A watched folder of `.npy` files and pictures; "" watches none. `data_class` "" means the agent's."""

    path: str = ""
    data_class: str = Field(default="", pattern=_DATA_CLASS)
    every_s: float = Field(default=0.5, ge=0.05, le=3600)


class OutboxSection(_Section):
    """How much may wait for the hub; a full outbox answers locally and says so."""

    max_rows: int = Field(default=_OUTBOX.max_rows, ge=1)
    max_bytes: int = Field(default=_OUTBOX.max_bytes, ge=65536)
    max_age_s: float = Field(default=_OUTBOX.max_age_s, gt=0, le=_OUTBOX.max_age_s)
    ask_interval_s: float = Field(default=_OUTBOX.ask_interval_s, ge=1, le=3600)


class RecordsSection(_Section):
    """How many rows of each record are kept, and when they are written; the oldest are deleted first.

    `answers_every_s`: how often records of purely local answers are written (ADR 0023). `heads_every_s`: how often a
    signed head of the egress ledger is sent to the hub.
    """

    answers_max_rows: int = Field(default=_AGENT.answers_max_rows, ge=1000)
    outcomes_max_rows: int = Field(default=_AGENT.outcomes_max_rows, ge=1000)
    ledger_max_rows: int = Field(default=_AGENT.ledger_max_rows, ge=1000)
    answers_every_s: float = Field(default=_AGENT.answers_every_s, ge=0, le=3600)
    heads_every_s: float = Field(default=_AGENT.heads_every_s, ge=1, le=86_400)


class LinkSection(_Section):
    """How the connection to the broker is kept. Seconds; backoff pauses are drawn at random up to the current step.

    `mqtt_client`: "paho" takes the former MQTT client. `websocket`: MQTT over WebSocket at this URL, in place of the
    broker's own port; `proxy`: an HTTP proxy on the way; `proxy_credentials_file`: a private file with USER:PASSWORD.
    """

    mqtt_client: MqttClient = _AGENT.mqtt_client

    reconnect_base_s: float = Field(default=_AGENT.reconnect_base_s, gt=0, le=60)
    reconnect_cap_s: float = Field(default=_AGENT.reconnect_cap_s, gt=0, le=3600)
    connect_timeout_s: float = Field(default=_AGENT.connect_timeout_s, gt=0, le=120)
    silent_after_s: float = Field(default=_AGENT.silent_after_s, ge=5, le=3600)
    websocket: str = Field(default="", max_length=500)
    proxy: str = Field(default="", max_length=500)
    proxy_credentials_file: str = Field(default="", max_length=500)

    def link_route(self) -> LinkRoute:
        """The way to the home broker."""
        return LinkRoute(self.websocket, self.proxy, self.proxy_credentials_file)


class UpdatesSection(_Section):
    """How often the update repository is polled, +-20 %. Switched off, the device keeps what it has.

    `follow` "assignments": a device without a model takes the newest, and then runs what the hub assigns to it;
    "newest": always the newest. `metered`: models may be downloaded over a metered link. `interval_s`: the shortest
    time between two new models. `spread_s`: an assigned model waits a random part of it.
    """

    enabled: bool = True
    every_s: float = Field(default=1800.0, ge=1, le=86_400)
    follow: Literal["assignments", "newest"] = "assignments"
    metered: bool = False
    interval_s: float = Field(default=_LIMITS.interval_s, ge=0, le=86_400)
    spread_s: float = Field(default=_LIMITS.spread_s, ge=0, le=86_400)


class HubSection(_Section):
    """A further hub. `state`: the folder of this device's enrolment there; "" is the agent's own.

    `price`: of one question, in millionths of the owner's currency unit.
    """

    state: str = ""
    price: int = Field(default=0, ge=0, le=10**12)


class DeviceSection(_Section):
    """Device attributes that rules of a policy may use. "" and [] = unknown, which narrows what is allowed.

    `metered_file` says whether the link is metered now, as `yes` or `no`. `power_supply` "": it runs on mains.
    """

    kind: str = Field(default="", alias="class", pattern=_DATA_CLASS)
    region: str = Field(default="", pattern=_DATA_CLASS)
    tags: tuple[Annotated[str, Field(pattern=_DATA_CLASS)], ...] = ()
    metered: bool | Literal[""] = ""
    metered_file: str = ""
    power_supply: str = POWER_SUPPLY


class EnergySection(_Section):
    """What the device's energy is counted by. `meters`: tried in this order; "card" comes on top of the others.

    `watts`: joules of one core's second at work, where no meter tells. `link`: whose stated figures a message has;
    `link_message_j` and `link_byte_uj` replace them. "unknown" counts as the dearest, LTE.
    """

    meters: tuple[MeterKind, ...] = _ENERGY.meters
    watts: float = Field(default=_ENERGY.watts, gt=0, le=500)
    link: LinkKind = LinkKind.UNKNOWN
    link_message_j: float | None = Field(default=None, ge=0, le=1000)
    link_byte_uj: float | None = Field(default=None, ge=0, le=10_000)

    def settings(self, cores: int) -> EnergySettings:
        """The values as the agent takes them. `cores`: that inference uses."""
        stated = STATED_LINKS[self.link]
        link = LinkEnergy(
            stated.message_j if self.link_message_j is None else self.link_message_j,
            stated.byte_uj if self.link_byte_uj is None else self.link_byte_uj,
        )
        kind = self.link.value if link == stated else "configured"
        return EnergySettings(self.meters, self.watts, cores, link, kind)


class TraceSection(_Section):
    """Where spans of answered questions go: `endpoint` of an OpenTelemetry collector (OTLP over HTTP); "" = nowhere.

    An address that is not of this machine has to be https.
    """

    endpoint: str = Field(default="", pattern=r"^(https?://[^\s/]+(/\S*)?)?$", max_length=500)


class AgentConfig(ProcessConfig):
    """The whole configuration. `state`: the enrolled folder (keys, agent.db). `bundle`: the model.

    `policy` "" means that nothing may leave. `bundle` and `policy` are paths, or `tuf:NAME`: a family and a policy of
    the update repository. A list of policies: layers, each of which narrows the others. `airgap`: nothing leaves at
    all, there is not even a link. `thresholds`: a file of `skerry models calibrate`. `input`: how a picture becomes a
    sample, where the bundle does not say it itself (`models/bundle/preparation.py` has its keys).
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, allow_inf_nan=False)
    state: str = "skerry-agent"
    bundle: str
    policy: str | tuple[str, ...] = ""
    airgap: bool = False
    thresholds: str = ""
    data_class: str = Field(default="", pattern=_DATA_CLASS)
    threads: int = Field(default=1, ge=1, le=64)
    log_level: Literal["info", "warning", "error"] = "info"
    api: ApiSection = ApiSection()
    folder: FolderSection = FolderSection()
    outbox: OutboxSection = OutboxSection()
    records: RecordsSection = RecordsSection()
    link: LinkSection = LinkSection()
    updates: UpdatesSection = UpdatesSection()
    device: DeviceSection = DeviceSection()
    energy: EnergySection = EnergySection()
    trace: TraceSection = TraceSection()
    hub: tuple[HubSection, ...] = Field(default=(), max_length=16)
    sensor: tuple[SensorSection, ...] = Field(default=(), max_length=MAX_SENSORS)
    output: tuple[OutputSection, ...] = Field(default=(), max_length=MAX_OUTPUTS)
    input: dict[str, Any] = Field(default={})
    camera: tuple[CameraSection, ...] = Field(default=(), max_length=16)

    def preparation(self) -> Preparation | None:
        """How raw material becomes a sample, `[input]`; None without it. ExitError(CONFIG) that names a faulty key."""
        try:
            return parse_preparation(self.input) if self.input else None
        except ValueError as error:
            raise ExitError(ExitCode.CONFIG, f"input: {error}") from None

    def policy_layers(self) -> PolicyLayers:
        """The policy layers that the configuration names."""
        named = (self.policy,) if isinstance(self.policy, str) else self.policy
        return parse_layers(named, airgap=self.airgap)

    def api_access(self) -> ServerAccess:
        """Address, TLS and token of the local API."""
        api = self.api
        return ServerAccess(
            host=api.host, port=api.port, unix=api.unix, names=api.names, tls_cert=api.tls_cert, tls_key=api.tls_key,
            token_file=api.token_file,
        )  # fmt: skip

    def infer_limits(self) -> InferLimits:
        """Limits of inference requests over the API."""
        return InferLimits(self.api.max_body_bytes, self.api.max_batch, self.data_class)

    def install_limits(self) -> InstallLimits:
        """Limits of the install machine."""
        return InstallLimits(interval_s=self.updates.interval_s, spread_s=self.updates.spread_s)

    def agent_settings(self) -> AgentSettings:
        """The limits as the agent takes them."""
        outbox = OutboxLimits(**self.outbox.model_dump())
        d = self.device
        metered = None if d.metered == "" else d.metered
        attributes = DeviceAttributes(d.kind, d.region, "", d.tags or None, metered, d.metered_file, d.power_supply)
        return AgentSettings(
            state_dir=Path(self.state), outbox=outbox, attributes=attributes, energy=self.energy.settings(self.threads),
            **self.records.model_dump(), **self.link.model_dump(exclude=_ROUTE), route=self.link.link_route(),
        )  # fmt: skip


_PATHS = (
    *((key,) for key in ("state", "bundle", "policy", "thresholds")),
    *(("api", key) for key in ("unix", "tls_cert", "tls_key", "token_file")),
    ("folder", "path"),
    ("device", "metered_file"),
    ("link", "proxy_credentials_file"),
    ("camera", "password_file"),
    ("hub", "state"),
    *(("output", key) for key in OUTPUT_PATHS),
    *(("sensor", key) for key in SENSOR_PATHS),
)


def load_config(file: Path | None, environment: Mapping[str, str] | None = None) -> AgentConfig:
    """Read the configuration from a file and the environment.

    Raises ExitError(CONFIG) with one line that names the key, if anything is unreadable, unknown or impossible.
    """
    data = read_toml_file(file, ExitCode.CONFIG, "`skerry agent init` writes one") if file else {}
    check_keys(data, str(file))
    if file:
        make_absolute(data, _PATHS, file.absolute().parent, lambda text: bool(text) and not name_of(text))
    config = build_config(AgentConfig, data, file, environment)
    validate_access(config.api_access())
    config.preparation()
    check_route(config.link.link_route())
    if config.link.link_route() != DIRECT and config.link.mqtt_client is MqttClient.PAHO:
        raise ExitError(ExitCode.CONFIG, "link.mqtt_client: paho knows neither websocket nor proxy")
    _check_trace(config)
    validate_outputs(config.output, airgap=config.airgap)
    validate_sensors(config.sensor, airgap=config.airgap)
    return config


def _check_trace(config: AgentConfig) -> None:
    """Raise ExitError(CONFIG) for a collector that an air-gapped device may not have, or that spans reach in clear."""
    endpoint = config.trace.endpoint
    if endpoint and config.airgap:
        raise ExitError(ExitCode.CONFIG, "trace.endpoint: airgap = true lets nothing leave, spans neither")
    if endpoint.startswith("http:") and not is_loopback(urlsplit(endpoint).hostname or ""):
        raise ExitError(ExitCode.CONFIG, "trace.endpoint: a collector on another machine has to be https")


def check_keys(data: Mapping[str, Any], where: str) -> None:
    """Raise ExitError(CONFIG) for the first key of a table that is unknown, with the nearest one that is known."""
    known = set(list_known_keys(AgentConfig))
    for key in _flatten_keys(data):
        if key not in known:
            raise ExitError(
                ExitCode.CONFIG, f"{where}: unknown key '{key[:60]}', did you mean '{find_nearest_key(key, known)}'?"
            )


def _flatten_keys(data: Mapping[str, Any]) -> Iterator[str]:
    """Keys with their table; a table where a value belongs is left to the type check."""
    tables = find_sections(AgentConfig)
    for key, value in data.items():
        if isinstance(value, dict) and (key in tables or key not in AgentConfig.model_fields):
            yield from (f"{key}.{inner}" for inner in value) if value or key in tables else (key,)
        elif key not in tables:
            yield key
