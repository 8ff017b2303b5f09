"""Hub configuration: the schema of its TOML file and environment variables (`SKERRY_HUB_API__PORT=8443`)."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.database.server import check_server, check_url
from cloud_hub.engine.types import EngineOptions
from cloud_hub.jobs.decisions import JobSettings
from cloud_hub.region.leases import LIFE_S
from cloud_hub.runtime.broker import BrokerSettings
from cloud_hub.runtime.engine_config import EngineSection, RaySection, RemoteSection, read_engine_options
from cloud_hub.runtime.language_models import LlmSection, check_names
from cloud_hub.runtime.policies import TUF_PREFIX, PolicyEntry, PolicyReader, compile_policies, read_nothing
from cloud_hub.runtime.scaling import ScalingSection
from cloud_hub.storage.prices import PriceList, UnitPrices
from cloud_hub.system.config_base import ConfigSection, ProcessConfig, build_config
from cloud_hub.system.settings import HubSettings
from cloud_hub.system.state_folder import StateDir
from policies.serving.placement import GIB
from wire.http.access import WILDCARD_HOSTS, Network, ServerAccess, parse_networks, validate_access
from wire.http.path_prefix import PATTERN
from wire.process.config import make_absolute, take_out_removed
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_toml_file
from wire.protocol.topics import HUB_NAMES

PREFIX = "SKERRY_HUB_"
_DEFAULTS = HubSettings()
_JOBS = JobSettings()
_REMOVED = {
    "sessions": "delete the section; every question is signed by its device",
    "broker.mqtt_client": "delete the key; there is one MQTT client",
}
_UNPUBLISHED = "not published yet"  # no policy's hash: where policies are named, there is no "any policy"


class HubSection(ConfigSection):
    """Section [hub]: names, region, queue and rate limits. Each limit is explained at `HubSettings`.

    `name`: of the region's hub, as devices know it; `member`: which of the region's hubs this one is, the first one
    `hub` or, where they are numbered by a machine, `hub-1`.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")] = _DEFAULTS.name
    member: Literal[HUB_NAMES] = HUB_NAMES[0]  # type: ignore[valid-type]  # each of the names
    region: Annotated[str, Field(min_length=1, max_length=64)] = _DEFAULTS.region
    policies: frozenset[str] = frozenset()
    max_queued: Annotated[int, Field(ge=1)] = _DEFAULTS.max_queued
    device_open: Annotated[int, Field(ge=1)] = _DEFAULTS.device_open
    device_rate_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = _DEFAULTS.device_rate_per_s
    device_burst: Annotated[float, Field(ge=1, allow_inf_nan=False)] = _DEFAULTS.device_burst
    tenant_rate_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = _DEFAULTS.tenant_rate_per_s
    tenant_burst: Annotated[float, Field(ge=1, allow_inf_nan=False)] = _DEFAULTS.tenant_burst
    max_wait_s: Annotated[float, Field(gt=0, le=3600)] = _DEFAULTS.max_wait_s
    held_back: Annotated[float, Field(ge=0, lt=1)] = _DEFAULTS.held_back
    max_batch: Annotated[int, Field(ge=1, le=4096)] = _DEFAULTS.max_batch
    gather_s: Annotated[float, Field(ge=0, le=0.1)] = _DEFAULTS.gather_s
    max_loaded: Annotated[int, Field(ge=0)] = _DEFAULTS.max_loaded
    leave_file: Annotated[str, Field(max_length=4096)] = ""
    drain_s: Annotated[float, Field(ge=0, le=300)] = _DEFAULTS.drain_s

    @field_validator("member", mode="before")
    @classmethod
    def _name_first(cls, member: object) -> object:
        return HUB_NAMES[0] if member == f"{HUB_NAMES[0]}-1" else member


class ApiSection(ConfigSection):
    """Section [api]: where the web API listens, and its TLS.

    `tls` = with the hub's own certificate, or with `tls_cert` and `tls_key` where both are given.
    `names` are host names and addresses that callers may use; `url` is what invites carry ("" = the address opened).
    `unix` (a socket's path) beats host and port. `trusted_proxies`: addresses and networks (CIDR) of proxies whose
    `X-Forwarded-For` or `Forwarded` names the caller. `path_prefix`: below which a proxy serves the hub, "/skerry".
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    unix: Annotated[str, Field(max_length=100)] = ""
    names: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    path_prefix: Annotated[str, Field(pattern=PATTERN, max_length=200)] = ""
    tls: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    url: str = ""
    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 16 * 1024 * 1024
    ready_timeout_s: Annotated[float, Field(gt=0, le=60)] = 2.0


class BrokerSection(ConfigSection):
    """Section [broker]: the MQTT broker.

    `start` false = somebody else runs the broker at `host`:`port` with certificates of this hub's CA.
    `address` is the host name devices are given ("" = `host`); `devices` sizes the broker's queues.
    `websocket_port`: where a broker that is started here also speaks MQTT over WebSocket (0 = nowhere), for devices
    behind a proxy.
    """

    start: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 18883
    address: str = ""
    names: tuple[str, ...] = ()
    devices: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    program: str = ""
    websocket_port: Annotated[int, Field(ge=0, le=65535)] = 0


class EnrolSection(ConfigSection):
    """Section [enrol]: rate limits of attempts, for everybody together and for failures of one caller.

    A caller is an address, or a device that has proved itself there; each has a share of what is for everybody.

    `hardware_file`: a text file of serial numbers, one per line; only these machines may enrol ("" = any).
    `certificate_days`: how long a device's certificate lasts; it is renewed at two thirds.
    """

    per_s: Annotated[float, Field(gt=0)] = 20.0
    burst: Annotated[float, Field(ge=1)] = 200.0
    failures_per_minute: Annotated[float, Field(gt=0)] = 10.0
    failures: Annotated[float, Field(ge=1)] = 20.0
    hardware_file: Path | None = None
    certificate_days: Annotated[float, Field(gt=0, le=90)] = 7.0


class RepositorySection(ConfigSection):
    """Section [repository].

    `url`: of the mirror or CDN that devices read the update repository from ("" = this hub, below `/tuf`).
    """

    url: Annotated[str, Field(pattern=r"^(https?://\S{1,500})?$")] = ""


class StoreSection(ConfigSection):
    """Section [store]: the database of the hub's state.

    `url`: `postgresql+psycopg://USER@HOST/DATABASE`, "" = SQLite files in the state folder. `allow_fsync_off`: use a
    PostgreSQL server that may lose what it says it has written. `lease_s`: hubs that share a PostgreSQL server serve
    the shards of one that does not answer after this time.
    """

    url: Annotated[str, Field(max_length=2000)] = ""
    allow_fsync_off: bool = False
    lease_s: Annotated[float, Field(ge=2, le=60)] = LIFE_S


class CostsSection(ConfigSection):
    """Section [costs]: prices of devices' questions and of web requests; those of a language model are in its [[llm]].

    `currency`: as it is shown, "" = there are no prices. `engine_s`: of a second of an engine; `gib`: of requests;
    `kwh`: of the energy of this machine's graphics cards.
    """

    currency: Annotated[str, Field(pattern=r"^[ -~]{0,8}$")] = ""
    request: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    engine_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    gib: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    kwh: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class JobsSection(ConfigSection):
    """Section [jobs]: work that outlives its request, see docs/jobs.md. Times in seconds.

    `timeout_s`: a job's own time if it names none; `tries`: how often one is tried; `keep_s`: how long an ended one is
    kept, `keep_dead_s` a dead one; `window`: how many a hub has in its queues at once; `tenant_open`: how many of a
    tenant may be open; `webhooks_inwards`: webhooks may be on this machine and in its own network.
    """

    timeout_s: Annotated[float, Field(ge=1, le=7 * 86_400)] = _JOBS.timeout_s
    tries: Annotated[int, Field(ge=1, le=100)] = _JOBS.tries
    keep_s: Annotated[float, Field(ge=1, le=31 * 86_400)] = _JOBS.keep_s
    keep_dead_s: Annotated[float, Field(ge=1, le=31 * 86_400)] = _JOBS.keep_dead_s
    window: Annotated[int, Field(ge=1, le=4096)] = _JOBS.window
    tenant_open: Annotated[int, Field(ge=1, le=10_000_000)] = _JOBS.tenant_open
    webhooks_inwards: bool = _JOBS.webhooks_inwards

    def job_settings(self) -> JobSettings:
        """Return the limits of jobs."""
        return JobSettings(**self.model_dump())


class TraceSection(ConfigSection):
    """Section [trace]: where spans go, a `file` of JSON lines or a collector's OTLP/HTTP `endpoint`. Off by default."""

    file: Path | None = None
    endpoint: Annotated[str, Field(pattern=r"^(https?://\S{1,500})?$")] = ""


class HubConfig(ProcessConfig):
    """Complete configuration of `python -m cloud_hub`. `models` are bundle folders.

    `policies` are documents, each a TOML file or `tuf:NAME` of the hub's own update repository, or a list of the layers
    of one: once any is named, questions are served under these alone, and each is judged again before it is stored.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX)
    state: Path = Path("skerry-hub")
    models: tuple[Path, ...] = ()
    models_folder: Path | None = None
    policies: tuple[PolicyEntry, ...] = ()
    hub: HubSection = HubSection()
    api: ApiSection = ApiSection()
    broker: BrokerSection = BrokerSection()
    enrol: EnrolSection = EnrolSection()
    repository: RepositorySection = RepositorySection()
    engine: EngineSection = EngineSection()
    store: StoreSection = StoreSection()
    scaling: ScalingSection = ScalingSection()
    costs: CostsSection = CostsSection()
    jobs: JobsSection = JobsSection()
    trace: TraceSection = TraceSection()
    llm: tuple[LlmSection, ...] = ()
    remote: tuple[RemoteSection, ...] = ()
    ray: RaySection = RaySection()

    def state_dir(self) -> StateDir:
        """Return the state folder, absolute."""
        return StateDir(self.state.expanduser().absolute())

    def database_urls(self) -> DatabaseUrls:
        """Return where the hub's state is. ExitError(CONFIG) if `[store] url` cannot be used."""
        return DatabaseUrls(self.state_dir().root, check_url(self.store.url) if self.store.url else "")

    def check_database(self) -> None:
        """Check the server of `[store] url`, if one is named; ExitError as `check_server` says."""
        if self.store.url:
            check_server(self.store.url, allow_fsync_off=self.store.allow_fsync_off)

    def hub_settings(self, published: PolicyReader = read_nothing) -> HubSettings:
        """Return the core's settings. ExitError(POLICY) if a document cannot be used.

        `published` reads policy documents of the update repository by name.
        """
        told = self.hub.model_dump() | {"max_loaded_bytes": int(self.engine.loaded_gib * GIB)}
        documents = compile_policies(self.policies, published)
        named = {_UNPUBLISHED} if self.policies else set()
        told["policies"] = self.hub.policies | {document.hash for document in documents} | named
        told |= {"scaling": self.scaling.scaling_rules(), "obeys_scaling": self.scaling.obey}
        return HubSettings(**told, documents=documents, database_url=self.database_urls().questions)

    def engine_options(self) -> EngineOptions:
        """Return what engines may use on this machine, and on others."""
        told = read_engine_options(self.engine, self.remote, self.ray)
        told = told.without_measuring() if self.store.url else told  # the hubs of a region answer alike
        questions = {each.name: each.max_questions for each in self.llm}
        scaled = frozenset(self.scaling.models) if self.scaling.obey else frozenset[str]()
        return msgspec.structs.replace(told, max_batch=self.hub.max_batch, language_models=questions, scaled=scaled)

    def price_list(self) -> PriceList:
        """Return the prices of what is used."""
        told = self.costs.model_dump()
        models = {section.name: section.price.unit_prices() for section in self.llm}
        return PriceList(told.pop("currency"), UnitPrices(**told), models)

    def broker_settings(self) -> BrokerSettings:
        """Return the settings of the broker that the hub starts."""
        section = self.broker
        return BrokerSettings(
            self.state_dir().broker, section.host, section.port, devices=section.devices, program=section.program,
            websocket_port=section.websocket_port,
        )  # fmt: skip

    def server_access(self) -> ServerAccess:
        """Return where the web API listens; its certificate is the hub's own unless files are named."""
        own = self.state_dir().certificates
        certificate = self.api.tls_cert or (str(own / "server.pem") if self.api.tls else "")
        key = self.api.tls_key or (str(own / "server.key") if self.api.tls else "")
        return ServerAccess(
            host=self.api.host,
            port=self.api.port,
            unix=self.api.unix,
            names=self.api.names,
            tls_cert=certificate,
            tls_key=key,
            token_file=str(self.state_dir().token_file),
        )

    def public_url(self, port: int) -> str:
        """Return the URL that invites carry, for an API opened on `port`.

        ExitError(CONFIG) if no name is known for it.
        """
        if self.api.url:
            return self.api.url.rstrip("/")
        host = next((name for name in (self.api.host, *self.api.names) if name not in WILDCARD_HOSTS), "")
        if not host or not port:
            raise ExitError(ExitCode.CONFIG, "set api.url: devices need an address to reach this hub at")
        return f"{'https' if self.server_access().tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    def proxy_networks(self) -> tuple[Network, ...]:
        """Return the networks of trusted proxies. ExitError(CONFIG) for what is none."""
        try:
            return parse_networks(self.api.trusted_proxies)
        except ValueError as error:
            raise ExitError(ExitCode.CONFIG, f"api.trusted_proxies: {error}; such as 10.0.0.0/8") from None

    def broker_host(self) -> str:
        """Return the broker host that devices are given. ExitError(CONFIG) if only a wildcard is known."""
        found = next(
            (
                name
                for name in (self.broker.address, self.broker.host, *self.broker.names)
                if name not in WILDCARD_HOSTS
            ),
            "",
        )
        if not found:
            raise ExitError(
                ExitCode.CONFIG, "set broker.address: devices need a host name or address to reach the broker at"
            )
        return found

    def server_names(self) -> tuple[str, ...]:
        """Return every name that the hub's server certificate must carry."""
        named = (self.api.host, *self.api.names, self.broker.host, self.broker.address, *self.broker.names)
        here = ("::1",) if "::" in named else ()
        return tuple(dict.fromkeys(name for name in (*named, *here) if name not in WILDCARD_HOSTS))


_PATHS = (("state",), ("models_folder",), ("models",), ("policies",), ("trace", "file"), ("enrol", "hardware_file"))
_PATHS_UNLESS_EMPTY = (
    ("api", "unix"),
    ("api", "tls_cert"),
    ("api", "tls_key"),
    ("hub", "leave_file"),
    ("llm", "key_file"),
    ("remote", "token_file"),
    ("remote", "ca_file"),
)


def load_hub_config(path: Path | None) -> HubConfig:
    """Read file and environment. ExitError(CONFIG) with one line that names the key and what is wrong with it."""
    values = read_toml_file(path, ExitCode.CONFIG, "`skerry hub init` writes one") if path else {}
    if path:
        folder = path.absolute().parent
        make_absolute(values, _PATHS, folder, lambda text: not text.startswith(TUF_PREFIX))
        make_absolute(values, _PATHS_UNLESS_EMPTY, folder, bool)
    take_out_removed(values, _REMOVED, PREFIX, path)
    config = build_config(HubConfig, values, path)
    validate_access(config.server_access())
    config.proxy_networks()
    config.broker_host()
    check_names(config.llm)
    config.scaling.scaling_rules()
    named = [each.model for each in config.remote]
    if twice := next((name for name in named if named.count(name) > 1), ""):
        raise ExitError(ExitCode.CONFIG, f"two [[remote]] tables are for {twice}")
    return config
