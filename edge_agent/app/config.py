"""The agent's configuration: the sections of its TOML file, and its environment (`SKERRY_AGENT_API__PORT=8090`)."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec import Meta
from msgspec.structs import asdict

from edge_agent.api.service import InferLimits
from edge_agent.app.source_config import CameraSection
from edge_agent.outputs.settings import MAX_OUTPUTS, OUTPUT_PATHS, OutputSection, check_stated_keys, validate_outputs
from edge_agent.question.limits import LinkEnergy
from edge_agent.sources.sensor_settings import MAX_SENSORS, SENSOR_PATHS, SensorSection, validate_sensors
from edge_agent.system.energy import STATED_LINKS, EnergySettings, LinkKind, MeterKind
from edge_agent.system.environment import POWER_SUPPLY, DeviceAttributes
from edge_agent.system.policy_layers import PolicyLayers, parse_layers
from edge_agent.system.settings import PROXY_VARIABLES, AgentSettings, OutboxLimits, name_of
from edge_agent.update.types import InstallLimits
from models.bundle.preparation import Preparation, parse_preparation
from wire.http.access import ServerAccess, is_loopback, validate_access
from wire.process.config import (
    ConfigSection,
    ProcessConfig,
    build_config,
    find_nearest_key,
    find_sections,
    list_known_keys,
    make_absolute,
    take_out_removed,
)
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_toml_file
from wire.process.proxy import ForwardProxy, check_proxy
from wire.transport.routes import LinkRoute, check_route

PREFIX = "SKERRY_AGENT_"
_OUTBOX = OutboxLimits()
_AGENT = AgentSettings(state_dir=Path())
_LIMITS = InstallLimits()
_ENERGY = EnergySettings()
_ROUTE = {"websocket", "proxy", "proxy_credentials_file"}
_PROVIDER = r"^[A-Za-z0-9]{1,56}ExecutionProvider\Z"
_REMOVED = {
    "link.sessions": "delete the key; every question is signed by itself",
    "link.mqtt_client": "delete the key; there is one MQTT client",
}
_DATA_CLASS = r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?\Z"


class ApiSection(ConfigSection, frozen=True):
    """The local API. An address that is not loopback needs `tls_cert`, `tls_key` and `token_file`.

    `names`: further host names that callers may use. `port` 0: any free one, printed at start. `unix` beats host and
    port.
    """

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8090
    unix: Annotated[str, Meta(max_length=100)] = ""
    names: tuple[str, ...] = ()
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    max_body_bytes: Annotated[int, Meta(ge=1024, le=256 * 1024 * 1024)] = 4 * 1024 * 1024
    max_batch: Annotated[int, Meta(ge=1, le=4096)] = 256


class FolderSection(ConfigSection, frozen=True):
    """A watched folder of `.npy` files and pictures; "" watches none. `data_class` "" means the agent's.

    `done_max_files`, `done_max_bytes`: what its folder `done` keeps, results among them; 0 = all.
    """

    path: str = ""
    data_class: Annotated[str, Meta(pattern=_DATA_CLASS)] = ""
    every_s: Annotated[float, Meta(ge=0.05, le=3600)] = 0.5
    done_max_files: Annotated[int, Meta(ge=0)] = 0
    done_max_bytes: Annotated[int, Meta(ge=0)] = 0


class OutboxSection(ConfigSection, frozen=True):
    """How much may wait for the hub; a full outbox answers locally and says so."""

    max_rows: Annotated[int, Meta(ge=1)] = _OUTBOX.max_rows
    max_bytes: Annotated[int, Meta(ge=65536)] = _OUTBOX.max_bytes
    max_age_s: Annotated[float, Meta(gt=0, le=_OUTBOX.max_age_s)] = _OUTBOX.max_age_s
    ask_interval_s: Annotated[float, Meta(ge=1, le=3600)] = _OUTBOX.ask_interval_s


class RecordsSection(ConfigSection, frozen=True):
    """How many rows of each record are kept, and when they are written; the oldest are deleted first.

    `answers_every_s`: how often records of purely local answers are written (ADR 0023). `heads_every_s`: how often a
    signed head of the egress ledger is sent to the hub.
    """

    answers_max_rows: Annotated[int, Meta(ge=1000)] = _AGENT.answers_max_rows
    outcomes_max_rows: Annotated[int, Meta(ge=1000)] = _AGENT.outcomes_max_rows
    ledger_max_rows: Annotated[int, Meta(ge=1000)] = _AGENT.ledger_max_rows
    answers_every_s: Annotated[float, Meta(ge=0, le=3600)] = _AGENT.answers_every_s
    heads_every_s: Annotated[float, Meta(ge=1, le=86_400)] = _AGENT.heads_every_s


class LinkSection(ConfigSection, frozen=True):
    """How the connection to the broker is kept. Seconds; backoff pauses are drawn at random up to the current step.

    `websocket`: MQTT over WebSocket at this URL, in place of the broker's own port; `proxy`: an HTTP proxy on the way;
    `proxy_credentials_file`: a private file with USER:PASSWORD.
    """

    reconnect_base_s: Annotated[float, Meta(gt=0, le=60)] = _AGENT.reconnect_base_s
    reconnect_cap_s: Annotated[float, Meta(gt=0, le=3600)] = _AGENT.reconnect_cap_s
    connect_timeout_s: Annotated[float, Meta(gt=0, le=120)] = _AGENT.connect_timeout_s
    silent_after_s: Annotated[float, Meta(ge=5, le=3600)] = _AGENT.silent_after_s
    websocket: Annotated[str, Meta(max_length=500)] = ""
    proxy: Annotated[str, Meta(max_length=500)] = ""
    proxy_credentials_file: Annotated[str, Meta(max_length=500)] = ""

    def link_route(self) -> LinkRoute:
        """The way to the home broker."""
        return LinkRoute(self.websocket, self.proxy, self.proxy_credentials_file)


class UpdatesSection(ConfigSection, frozen=True):
    """How often the update repository is polled, +-20 %. Switched off, the device keeps what it has.

    `follow` "assignments": a device without a model takes the newest, and then runs what the hub assigns to it;
    "newest": always the newest. `metered`: models may be downloaded over a metered link. `interval_s`: the shortest
    time between two new models. `spread_s`: an assigned model waits a random part of it.
    """

    enabled: bool = True
    every_s: Annotated[float, Meta(ge=1, le=86_400)] = 1800.0
    follow: Literal["assignments", "newest"] = "assignments"
    metered: bool = False
    interval_s: Annotated[float, Meta(ge=0, le=86_400)] = _LIMITS.interval_s
    spread_s: Annotated[float, Meta(ge=0, le=86_400)] = _LIMITS.spread_s


class HubSection(ConfigSection, frozen=True):
    """A further hub. `state`: the folder of this device's enrolment there; "" is the agent's own.

    `price`: of one question, in millionths of the owner's currency unit.
    """

    state: str = ""
    price: Annotated[int, Meta(ge=0, le=10**12)] = 0


class DeviceSection(ConfigSection, frozen=True, rename={"kind": "class"}):
    """Device attributes that rules of a policy may use. "" and [] = unknown, which narrows what is allowed.

    `metered_file` says whether the link is metered now, as `yes` or `no`. `power_supply` "": it runs on mains.
    """

    kind: Annotated[str, Meta(pattern=_DATA_CLASS)] = ""
    region: Annotated[str, Meta(pattern=_DATA_CLASS)] = ""
    tags: tuple[Annotated[str, Meta(pattern=_DATA_CLASS)], ...] = ()
    metered: bool | Literal[""] = ""
    metered_file: str = ""
    power_supply: str = POWER_SUPPLY


class EnergySection(ConfigSection, frozen=True):
    """What the device's energy is counted by. `meters`: tried in this order; "card" comes on top of the others.

    `watts`: joules of one core's second at work, where no meter tells. `link`: whose stated figures a message has;
    `link_message_j` and `link_byte_uj` replace them. "unknown" counts as the dearest, LTE.
    """

    meters: tuple[MeterKind, ...] = _ENERGY.meters
    watts: Annotated[float, Meta(gt=0, le=500)] = _ENERGY.watts
    link: LinkKind = LinkKind.UNKNOWN
    link_message_j: Annotated[float, Meta(ge=0, le=1000)] | None = None
    link_byte_uj: Annotated[float, Meta(ge=0, le=10_000)] | None = None

    def settings(self, cores: int) -> EnergySettings:
        """The values as the agent takes them. `cores`: that inference uses."""
        stated = STATED_LINKS[self.link]
        link = LinkEnergy(
            stated.message_j if self.link_message_j is None else self.link_message_j,
            stated.byte_uj if self.link_byte_uj is None else self.link_byte_uj,
        )
        kind = self.link.value if link == stated else "configured"
        return EnergySettings(self.meters, self.watts, cores, link, kind)


class TraceSection(ConfigSection, frozen=True):
    """Where spans of answered questions go: `endpoint` of an OpenTelemetry collector (OTLP over HTTP); "" = nowhere.

    An address that is not of this machine has to be https.
    """

    endpoint: Annotated[str, Meta(pattern=r"^(https?://[^\s/]+(/\S*)?)?\Z", max_length=500)] = ""


class AgentConfig(ProcessConfig, frozen=True, kw_only=True):
    """The whole configuration. `state`: the enrolled folder (keys, agent.db). `bundle`: the model.

    `policy` "" means that nothing may leave. `bundle` and `policy` are paths, or `tuf:NAME`: a family and a policy of
    the update repository. A list of policies: layers, each of which narrows the others. `airgap`: nothing leaves at
    all, there is not even a link. `thresholds`: a file of `skerry models calibrate`. `input`: how a picture becomes a
    sample, where the bundle does not say it itself (`models/bundle/preparation.py` has its keys).
    """

    env_prefix: ClassVar[str] = PREFIX
    state: str = "skerry-agent"
    bundle: str
    policy: str | tuple[str, ...] = ""
    airgap: bool = False
    thresholds: str = ""
    data_class: Annotated[str, Meta(pattern=_DATA_CLASS)] = ""
    threads: Annotated[int, Meta(ge=1, le=64)] = 1
    providers: tuple[Annotated[str, Meta(pattern=_PROVIDER)], ...] = ()
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
    hub: Annotated[tuple[HubSection, ...], Meta(max_length=16)] = ()
    sensor: Annotated[tuple[SensorSection, ...], Meta(max_length=MAX_SENSORS)] = ()
    output: Annotated[tuple[OutputSection, ...], Meta(max_length=MAX_OUTPUTS)] = ()
    input: dict[str, Any] = {}  # noqa: RUF012 - msgspec gives each its own
    camera: Annotated[tuple[CameraSection, ...], Meta(max_length=16)] = ()

    @property
    def chosen_providers(self) -> tuple[str, ...] | None:
        """Execution providers that this device's owner names; None: those that the bundle was made for."""
        return self.providers or None

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
        outbox = OutboxLimits(**asdict(self.outbox))
        link = {name: value for name, value in asdict(self.link).items() if name not in _ROUTE}
        d = self.device
        metered = None if d.metered == "" else d.metered
        attributes = DeviceAttributes(d.kind, d.region, "", d.tags or None, metered, d.metered_file, d.power_supply)
        return AgentSettings(
            state_dir=Path(self.state), outbox=outbox, attributes=attributes, energy=self.energy.settings(self.threads),
            **asdict(self.records), **link, route=self.link.link_route(),
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
    take_out_removed(data, _REMOVED, PREFIX, file, environment)
    check_keys(data, str(file))
    if file:
        make_absolute(data, _PATHS, file.absolute().parent, lambda text: bool(text) and not name_of(text))
    config = build_config(AgentConfig, data, file, environment)
    validate_access(config.api_access())
    config.preparation()
    check_route(config.link.link_route())
    _check_trace(config)
    validate_outputs(config.output, airgap=config.airgap)
    _check_output_keys(data, file)
    validate_sensors(config.sensor, airgap=config.airgap)
    return config


def load_proxy(file: Path | None) -> ForwardProxy:
    """The proxy on the way to the hub: of the configuration, without one of the environment. ExitError(CONFIG)."""
    if file:
        return load_config(file).link.link_route().forward_proxy
    proxy = ForwardProxy(*(os.environ.get(name, "") for name in PROXY_VARIABLES))
    check_proxy(proxy)
    return proxy


def _check_output_keys(data: Mapping[str, Any], file: Path | None) -> None:
    try:
        check_stated_keys(data.get("output", ()))
    except ValueError as error:
        raise ExitError(ExitCode.CONFIG, f"{file}: output: {error}") from None


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
        if isinstance(value, dict) and (key in tables or key not in AgentConfig.__struct_encode_fields__):
            yield from (f"{key}.{inner}" for inner in value) if value or key in tables else (key,)
        elif key not in tables:
            yield key
