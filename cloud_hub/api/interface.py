"""What the web API needs of the hub, part by part, and the one value that hands all of it to the routes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cloud_hub.core.commands import Erase, Tombstone
from cloud_hub.core.web_requests import Kept, Probe, Wish
from cloud_hub.engine.base import ModelCard
from cloud_hub.enrollment.ca_rotation import Rotation
from cloud_hub.enrollment.enrollment import Issuer
from cloud_hub.enrollment.rate_limit import AttemptLimiter
from cloud_hub.enrollment.renewal import Renewals
from cloud_hub.registry.access import Keys
from cloud_hub.registry.audit import Audit
from cloud_hub.registry.orders import Notice, Orders
from cloud_hub.registry.registry import Registry
from cloud_hub.rollout.catalog import Catalog
from cloud_hub.rollout.planning import Order
from cloud_hub.rollout.types import Entry
from cloud_hub.rollout.view import DeviceView, View
from cloud_hub.serving.telemetry import Observer
from cloud_hub.storage.ledger_service import LedgerLogService
from cloud_hub.storage.retention import Tally
from wire.protocol.messages import Prediction


class HubState(Protocol):
    """See `cloud_hub.runtime.hub.Hub`."""

    def status(self) -> dict[str, Any]: ...

    def counters(self) -> dict[str, int]: ...


class Inference(Protocol):
    """See `cloud_hub.serving.web.Reception`."""

    @property
    def cards(self) -> tuple[ModelCard, ...]: ...

    async def infer(self, model: str, inputs: npt.NDArray[np.generic], wish: Wish) -> list[Prediction]: ...

    def overrun(self, tenant: str) -> None: ...


class ModelVersions(Protocol):
    """See `cloud_hub.serving.versions.Versions`."""

    def list(self) -> list[Kept]: ...

    async def load(self, model: str) -> None: ...

    async def unload(self, model: str) -> None: ...

    def speaking(self, model: str, now_ms: int) -> dict[str, int]: ...

    def retire(self, model: str, now_ms: int, *, force: bool = False) -> dict[str, int]: ...


class EngineProbes(Protocol):
    """See `cloud_hub.serving.executor.Engines`."""

    async def probe(self) -> list[Probe]: ...


class StoreRecords(Protocol):
    """See `cloud_hub.storage.gateway.StoreGateway`."""

    async def erase(self, wish: Erase) -> Tombstone: ...

    async def tallies(self) -> list[Tally]: ...

    def testify(self, text: bytes) -> bytes: ...


class Announcer(Protocol):
    """See `cloud_hub.runtime.link.Voice`."""

    def announce(self, notice: Notice, devices: Iterable[str]) -> None: ...


class RolloutControl(Protocol):
    """See `cloud_hub.rollout.controller.Rollouts`. A rollout is named by its id; RolloutError says why not."""

    def views(self) -> tuple[View, ...]: ...

    def view(self, rollout: str) -> View: ...

    def devices(self, rollout: str) -> Sequence[DeviceView]: ...

    async def history(self, rollout: str) -> Sequence[Entry]: ...

    async def start(self, order: Order, by: str) -> View: ...

    async def pause(self, rollout: str, by: str, why: str) -> View: ...

    async def resume(self, rollout: str, by: str) -> View: ...

    async def abort(self, rollout: str, by: str, why: str, *, revert: bool = False) -> View: ...

    async def approve(self, rollout: str, by: str, digest: str) -> View: ...


@dataclass(frozen=True, kw_only=True)
class ApiContext:
    """What the routes stand on. `now_ms` is hub time; `root_sha256` of the TUF root that invites carry, "" = none.

    `gate` slows enrolment, `renewal_gate` renewal. `evict` throws a device off the broker. `repository`: the folder
    with what devices fetch. `keys` and `audit`: who may use the web API, and who did.
    """

    hub: HubState
    inference: Inference
    versions: ModelVersions
    engines: EngineProbes
    store: StoreRecords
    announcer: Announcer
    observer: Observer
    registry: Registry
    issuer: Issuer
    renewals: Renewals
    rotation: Rotation
    gate: AttemptLimiter
    renewal_gate: AttemptLimiter
    now_ms: Callable[[], int]
    evict: Callable[[str], None]
    root_sha256: Callable[[], str] = str
    repository: Path | None = None
    orders: Orders = field(default_factory=Orders)
    keys: Keys = field(default_factory=Keys.in_memory)
    audit: Audit = field(default_factory=Audit)
    ledger: LedgerLogService | None = None
    rollouts: RolloutControl | None = None
    catalog: Catalog | None = None
