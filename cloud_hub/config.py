"""The hub's configuration: one TOML file, then the environment (`SKERRY_HUB_API__PORT=8443`), read once at start.

Rule: an unknown key is an error that names the nearest known one; nothing is guessed and nothing is ignored. Paths in
the file are relative to the file; paths from the environment to the working directory.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from cloud_hub.broker import BrokerSettings
from cloud_hub.engine.means import Means
from cloud_hub.served import TUF, Entry, Published, nothing, policies_of
from cloud_hub.settings import HubSettings
from cloud_hub.state import StateDir
from policies.placement import GIB
from wire.doors import WILDCARDS, Door, check_door
from wire.exits import Exit, Stop
from wire.named_files import read_toml

PREFIX = "SKERRY_HUB_"
_DEFAULTS = HubSettings()
_NOT_YET = "not published yet"  # no policy's hash: where policies are named, there is no "any policy"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HubSection(_Section):
    """The hub itself: see `HubSettings` for what each limit means."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")] = _DEFAULTS.name
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
    max_loaded: Annotated[int, Field(ge=0)] = _DEFAULTS.max_loaded
    leave_file: Annotated[str, Field(max_length=4096)] = ""
    drain_s: Annotated[float, Field(ge=0, le=300)] = _DEFAULTS.drain_s


class ApiSection(_Section):
    """`tls` = with the hub's own certificate, or with `tls_cert` and `tls_key` where both are given.

    `names` are host names and addresses that callers may use; `url` is what invites carry ("" = the address opened).
    `unix` (a socket's path) beats host and port.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    unix: Annotated[str, Field(max_length=100)] = ""
    names: tuple[str, ...] = ()
    tls: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    url: str = ""
    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 16 * 1024 * 1024
    ready_timeout_s: Annotated[float, Field(gt=0, le=60)] = 2.0


class BrokerSection(_Section):
    """`start` false = somebody else runs the broker at `host`:`port` with certificates of this hub's CA.

    `address` is the host name devices are given ("" = `host`); `devices` sizes the broker's queues.
    """

    start: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 18883
    address: str = ""
    names: tuple[str, ...] = ()
    devices: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    program: str = ""


class EnrolSection(_Section):
    """How fast tokens may be tried: by everybody together, and wrongly by one address.

    `hardware_file`: a text file of serial numbers, one per line; only these machines may enrol ("" = any).
    `certificate_days`: how long a device's certificate lasts; it is renewed at two thirds.
    """

    per_s: Annotated[float, Field(gt=0)] = 20.0
    burst: Annotated[float, Field(ge=1)] = 200.0
    failures_per_minute: Annotated[float, Field(gt=0)] = 10.0
    failures: Annotated[float, Field(ge=1)] = 20.0
    hardware_file: Path | None = None
    certificate_days: Annotated[float, Field(gt=0, le=90)] = 7.0


class EngineSection(_Section):
    """How models are spread over devices; 0 = the bundle's plan, else one process. See docs/engines.md.

    `devices`: graphics cards, or processes on CPUs; `memory_gib`: of each; `threads`: of torch, in each process;
    `ready_s`: for an engine to get ready.
    """

    devices: Annotated[int, Field(ge=0, le=64)] = 0
    memory_gib: Annotated[float, Field(ge=0, le=4096)] = 0.0
    tensor: Annotated[int, Field(ge=0, le=64)] = 0
    pipeline: Annotated[int, Field(ge=0, le=64)] = 0
    replicas: Annotated[int, Field(ge=0, le=64)] = 0
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    ready_s: Annotated[float, Field(ge=5, le=3600)] = 60.0


class RepositorySection(_Section):
    """`url`: of the mirror or CDN that devices read the update repository from ("" = this hub, below `/tuf`)."""

    url: Annotated[str, Field(pattern=r"^(https?://\S{1,500})?$")] = ""


class TraceSection(_Section):
    """Where spans go: a `file` of JSON lines, a collector's OTLP/HTTP `endpoint`. Off by default."""

    file: Path | None = None
    endpoint: Annotated[str, Field(pattern=r"^(https?://\S{1,500})?$")] = ""


class HubConfig(BaseSettings):
    """Everything `python -m cloud_hub` is told. `models` are bundle folders.

    `policies` are documents, each a TOML file or `tuf:NAME` of the hub's own update repository, or a list of the layers
    of one: once any is named, questions are served under these alone, and each is judged again before it is stored.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, case_sensitive=False
    )
    state: Path = Path("skerry-hub")
    models: tuple[Path, ...] = ()
    models_folder: Path | None = None
    policies: tuple[Entry, ...] = ()
    hub: HubSection = HubSection()
    api: ApiSection = ApiSection()
    broker: BrokerSection = BrokerSection()
    enrol: EnrolSection = EnrolSection()
    repository: RepositorySection = RepositorySection()
    engine: EngineSection = EngineSection()
    trace: TraceSection = TraceSection()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file; nothing else is read."""
        del settings_cls
        return env_settings, init_settings

    def state_dir(self) -> StateDir:
        return StateDir(self.state.expanduser().absolute())

    def hub_settings(self, published: Published = nothing) -> HubSettings:
        """Stop(POLICY) if a document cannot be used. `published`: reads those of the update repository."""
        told = self.hub.model_dump()
        documents = policies_of(self.policies, published)
        named = {_NOT_YET} if self.policies else set()
        told["policies"] = self.hub.policies | {document.hash for document in documents} | named
        return HubSettings(**told, documents=documents, database_url=f"sqlite:///{self.state_dir().store}")

    def means(self) -> Means:
        """What engines may use here."""
        section = self.engine
        return Means(
            max_batch=self.hub.max_batch,
            threads=section.threads,
            devices=section.devices,
            memory_bytes=int(section.memory_gib * GIB),
            tensor=section.tensor,
            pipeline=section.pipeline,
            replicas=section.replicas,
            ready_s=section.ready_s,
        )

    def broker_settings(self) -> BrokerSettings:
        section = self.broker
        return BrokerSettings(
            self.state_dir().broker, section.host, section.port, devices=section.devices, program=section.program
        )

    def door(self) -> Door:
        """Where the web API listens; its certificate is the hub's own unless files are named."""
        own = self.state_dir().certificates
        certificate = self.api.tls_cert or (str(own / "server.pem") if self.api.tls else "")
        key = self.api.tls_key or (str(own / "server.key") if self.api.tls else "")
        return Door(
            host=self.api.host,
            port=self.api.port,
            unix=self.api.unix,
            names=self.api.names,
            tls_cert=certificate,
            tls_key=key,
            token_file=str(self.state_dir().token_file),
        )

    def public_url(self, port: int) -> str:
        """The address that invites carry, for an API opened on `port`. Stop(CONFIG) if no name is known for it."""
        if self.api.url:
            return self.api.url.rstrip("/")
        host = next((name for name in (self.api.host, *self.api.names) if name not in WILDCARDS), "")
        if not host or not port:
            raise Stop(Exit.CONFIG, "set api.url: devices need an address to reach this hub at")
        return f"{'https' if self.door().tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    def broker_host(self) -> str:
        """The host devices are told to connect to. Stop(CONFIG) if only a wildcard is known."""
        found = next(
            (name for name in (self.broker.address, self.broker.host, *self.broker.names) if name not in WILDCARDS), ""
        )
        if not found:
            raise Stop(Exit.CONFIG, "set broker.address: devices need a host name or address to reach the broker at")
        return found

    def server_names(self) -> tuple[str, ...]:
        """Every name our server certificate must carry."""
        named = (self.api.host, *self.api.names, self.broker.host, self.broker.address, *self.broker.names)
        here = ("::1",) if "::" in named else ()
        return tuple(dict.fromkeys(name for name in (*named, *here) if name not in WILDCARDS))


def load(path: Path | None) -> HubConfig:
    """Read file and environment. Stop(CONFIG) with one line that names the key and what is wrong with it."""
    check_environment(os.environ)
    values: dict[str, Any] = {}
    if path:
        values = _absolute(read_toml(path, Exit.CONFIG, "`skerry hub init` writes one"), path.absolute().parent)
    try:
        config = HubConfig(**values)
    except ValidationError as error:
        raise Stop(Exit.CONFIG, f"{path or 'environment'}: {_first(error)}") from None
    except SettingsError as error:
        raise Stop(Exit.CONFIG, f"environment: {error}; write lists and sections as JSON") from None
    check_door(config.door())
    config.broker_host()
    return config


def _absolute(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same values with every path made absolute; what is no text is left to the types to refuse."""
    api = values.get("api")
    for key in ("state", "models_folder"):
        if isinstance(values.get(key), str):
            values[key] = _below(folder, values[key])
    for key in ("models", "policies"):
        if isinstance(values.get(key), list):
            values[key] = [_entry(folder, path) for path in values[key]]
    trace = values.get("trace")
    if isinstance(trace, dict) and isinstance(trace.get("file"), str):
        trace["file"] = _below(folder, trace["file"])
    if isinstance(api, dict):
        for key in ("unix", "tls_cert", "tls_key"):
            if isinstance(api.get(key), str) and api[key]:
                api[key] = _below(folder, api[key])
    return values


def _entry(folder: Path, entry: Any) -> Any:
    """A path, the paths of a list; a name of the repository stays a name, and what is neither is left to the types."""
    if isinstance(entry, list):
        return [_entry(folder, each) for each in entry]
    return _below(folder, entry) if isinstance(entry, str) and not entry.startswith(TUF) else entry


def _below(folder: Path, path: str) -> str:
    return str(folder / Path(path).expanduser())


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)[0]
    where = tuple(str(part) for part in found["loc"])
    if found["type"] == "extra_forbidden":
        return _unknown(".".join(where), where[-1], _known(where[:-1]))
    return f"{'.'.join(where)}: {found['msg'][:200]}".replace("\n", " ")


def _unknown(shown: str, key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.0)
    return f"unknown key {shown}" + (f", did you mean {near[0]}?" if near else "")


def _known(where: tuple[str, ...]) -> list[str]:
    """The keys a section has; of the document itself for ()."""
    model: Any = HubConfig
    for part in where:
        model = model.model_fields[part].annotation
    return list(model.model_fields)


def check_environment(environment: Mapping[str, str]) -> None:
    """Stop(CONFIG) for a variable that begins with our prefix and names nothing."""
    known = {PREFIX + key.upper() for key in _keys()}
    for name in environment:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise Stop(Exit.CONFIG, f"environment: {_unknown(name, name.upper(), known)}")


def _keys() -> list[str]:
    """`state`, `hub`, `hub__name`, ... as the environment spells them."""
    names: list[str] = []
    for key, field in HubConfig.model_fields.items():
        section = getattr(field.annotation, "model_fields", {})
        names += [key, *(f"{key}__{inner}" for inner in section)]
    return names
