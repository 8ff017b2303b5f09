"""Sections of the hub's configuration on what models compute on: [engine], [[remote]] and [ray]."""

from typing import Annotated

from pydantic import Field

from cloud_hub.engine.types import EngineOptions, RayOptions, RemoteServer
from cloud_hub.system.config_base import ConfigSection
from policies.serving.computing import ComputeOptions, ComputeOverride, DeviceChoice, Precision
from policies.serving.placement import GIB
from wire.process.exit_codes import ExitCode, ExitError


class EngineModelSection(ConfigSection):
    """Section [engine.models."NAME"] or "NAME@VERSION": what one model has otherwise than [engine] says."""

    device: DeviceChoice | None = None
    precision: Precision | None = None
    allow_fallback: bool | None = None
    compile: bool | None = None


class EngineSection(ConfigSection):
    """Section [engine]: what models compute on, and how they are spread over devices.

    See docs/engines.md. 0 = the bundle's plan, else one process.

    `devices`: graphics cards, or processes on CPUs; `memory_gib`: of each; `loaded_gib`: weights of all loaded models
    together, 0 = no limit; `threads`: of torch, in each process; `ready_s`: for an engine to get ready.
    """

    device: DeviceChoice = DeviceChoice.AUTO
    precision: Precision = Precision.AUTO
    allow_fallback: bool = False
    compile: bool = False
    loaded_gib: Annotated[float, Field(ge=0, le=65536)] = 0.0
    models: dict[str, EngineModelSection] = Field(default_factory=dict)

    devices: Annotated[int, Field(ge=0, le=64)] = 0
    memory_gib: Annotated[float, Field(ge=0, le=4096)] = 0.0
    tensor: Annotated[int, Field(ge=0, le=64)] = 0
    pipeline: Annotated[int, Field(ge=0, le=64)] = 0
    replicas: Annotated[int, Field(ge=0, le=64)] = 0
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    ready_s: Annotated[float, Field(ge=5, le=3600)] = 60.0


_MAX_PORT = 65535
_V2_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


class RemoteSection(ConfigSection):
    """Table [[remote]]: a server that computes one model or version. Each key is explained at `RemoteServer`."""

    model: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[1-9][0-9]{0,18})?$")]
    url: Annotated[str, Field(pattern=r"^https?://[^\s/@?#]{1,255}(/[^\s@?#]{0,200})?$")]
    tail: Annotated[str, Field(pattern=_V2_NAME)]
    whole: Annotated[str, Field(pattern=_V2_NAME)]
    token_file: Annotated[str, Field(max_length=4096)] = ""
    ca_file: Annotated[str, Field(max_length=4096)] = ""
    connect_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    answer_s: Annotated[float, Field(gt=0, le=3600)] = 10.0


class RaySection(ConfigSection):
    """Section [ray]: a cluster whose machines models are spread over; no `address` = this machine alone.

    `address`: of its head, as `10.0.0.1:6379`; `nodes`: machines that a plan may count on, with `[engine] devices` in
    each; `host`: address of this hub that they reach, "" = the one that leads to the head; `ports`: where ranks connect
    to it, as `20000-20099`, "" = any.
    """

    address: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9.-]{0,252}:[1-9][0-9]{0,4})?$")] = ""
    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    host: Annotated[str, Field(pattern=r"^[0-9A-Za-z.-]{0,253}$")] = ""
    ports: Annotated[str, Field(pattern=r"^([1-9][0-9]{0,4}-[1-9][0-9]{0,4})?$")] = ""


def read_engine_options(
    section: EngineSection, remote: tuple[RemoteSection, ...] = (), ray: RaySection | None = None
) -> EngineOptions:
    """Return what engines may use. ExitError(CONFIG) if the ports of `[ray]` are none."""
    return EngineOptions(
        threads=section.threads,
        devices=section.devices,
        memory_bytes=int(section.memory_gib * GIB),
        tensor=section.tensor,
        pipeline=section.pipeline,
        replicas=section.replicas,
        ready_s=section.ready_s,
        compute=ComputeOptions(section.device, section.precision, section.allow_fallback, section.compile),
        models={name: ComputeOverride(**own.model_dump()) for name, own in section.models.items()},
        remote={each.model: RemoteServer(**each.model_dump(exclude={"model"})) for each in remote},
        ray=_read_ray_options(ray) if ray is not None and ray.address else None,
    )


def _read_ray_options(section: RaySection) -> RayOptions:
    first, last = (int(port) for port in (section.ports or "0-0").split("-"))
    if not first <= last <= _MAX_PORT or int(section.address.rpartition(":")[2]) > _MAX_PORT:
        raise ExitError(ExitCode.CONFIG, f"[ray] ports or address: no ports up to {_MAX_PORT}, the lower first")
    return RayOptions(section.address, section.nodes, section.host, first, last)
