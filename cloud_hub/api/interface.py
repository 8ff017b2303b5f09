"""Interfaces between the web API and the hub: one protocol per service, and `ApiContext`, which holds all of them."""

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
    """Status and counters of the hub; implemented by `cloud_hub.runtime.hub.Hub`."""

    def status(self) -> dict[str, Any]:
        """Return JSON-able status."""

    def counters(self) -> dict[str, int]:
        """Return monotonic counts by dotted name."""


class Inference(Protocol):
    """Inference for web callers; implemented by `cloud_hub.serving.web.Reception`."""

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """Descriptions of the models served now."""

    async def infer(self, model: str, inputs: npt.NDArray[np.generic], wish: Wish) -> list[Prediction]:
        """Compute predictions for a batch of inputs (rows first).

        InferRefusedError with the reason if it is refused.
        """

    def overrun(self, tenant: str) -> None:
        """Raise InferRefusedError if the tenant is over its rate, before its body is read."""


class ModelVersions(Protocol):
    """Loading and retiring of model versions; implemented by `cloud_hub.serving.versions.Versions`."""

    def list(self) -> list[Kept]:
        """Return every version, loaded or not."""

    async def load(self, model: str) -> None:
        """Load a model, `NAME` or `NAME@VERSION`; returns once it is ready. InferRefusedError if it cannot be."""

    async def unload(self, model: str) -> None:
        """Unload a model; returns once it is gone."""

    def speaking(self, model: str, now_ms: int) -> dict[str, int]:
        """Return the devices that use a version, with the time (ms) each was last heard."""

    def retire(self, model: str, now_ms: int, *, force: bool = False) -> dict[str, int]:
        """Retire a version and return the devices that used it. ModelInUseError if some do, unless `force` is set."""


class EngineProbes(Protocol):
    """Health probes of the engines; implemented by `cloud_hub.serving.executor.Engines`."""

    async def probe(self) -> list[Probe]:
        """Send one sample through every engine and return the results."""


class StoreRecords(Protocol):
    """Erasure and aggregates of the store; implemented by `cloud_hub.storage.gateway.StoreGateway`."""

    async def erase(self, wish: Erase) -> Tombstone:
        """Erase a subject's records; returns once it is on disk. StoreError if it could not be written."""

    async def tallies(self) -> list[Tally]:
        """Return counts of verdicts."""

    def testify(self, text: bytes) -> bytes:
        """Sign a text with the hub's key."""


class Announcer(Protocol):
    """Sender of notices; implemented by `cloud_hub.runtime.link.Voice`."""

    def announce(self, notice: Notice, devices: Iterable[str]) -> None:
        """Send a notice to these devices."""


class RolloutControl(Protocol):
    """Rollout controller; implemented by `cloud_hub.rollout.controller.Rollouts`.

    A rollout is named by its id; RolloutError says why something is refused.
    """

    def views(self) -> tuple[View, ...]:
        """Return every rollout, newest first."""

    def view(self, rollout: str) -> View:
        """Return one rollout."""

    def devices(self, rollout: str) -> Sequence[DeviceView]:
        """Return the state of every device of a rollout."""

    async def history(self, rollout: str) -> Sequence[Entry]:
        """Return a rollout's history, oldest first."""

    async def start(self, order: Order, by: str) -> View:
        """Start a rollout in the name of `by`."""

    async def pause(self, rollout: str, by: str, why: str) -> View:
        """Pause a rollout."""

    async def resume(self, rollout: str, by: str) -> View:
        """Resume a paused rollout."""

    async def abort(self, rollout: str, by: str, why: str, *, revert: bool = False) -> View:
        """Abort a rollout; `revert`: also send committed devices back."""

    async def approve(self, rollout: str, by: str, digest: str) -> View:
        """Add the approval of the plan with this digest."""


@dataclass(frozen=True, kw_only=True)
class ApiContext:
    """Everything that the routes need.

    `now_ms` is hub time; `root_sha256` of the TUF root that invites carry, "" = none.

    `gate` limits the rate of enrolment, `renewal_gate` that of renewal. `evict` ends a device's broker session.
    `repository`: the folder with what devices fetch. `keys` and `audit`: who may use the web API, and who did.
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
