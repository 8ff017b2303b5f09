"""Interfaces between the web API and the hub: one protocol per service, and `ApiContext`, which holds all of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cloud_hub.core.commands import Erasure, ErasureRequest
from cloud_hub.core.shards import ServedShards
from cloud_hub.core.web_requests import EngineProbe, InferOptions, StoredModel
from cloud_hub.database.offload import OrderedWork
from cloud_hub.engine.base import ModelCard
from cloud_hub.engine.types import EngineSetup
from cloud_hub.enrollment.ca_rotation import CaRotation
from cloud_hub.enrollment.enrollment import EnrollmentService
from cloud_hub.enrollment.rate_limit import AttemptGates
from cloud_hub.enrollment.renewal import RenewalService
from cloud_hub.jobs.desk import JobDesk
from cloud_hub.llm.service import LanguageModels
from cloud_hub.region.overview import RegionOverview
from cloud_hub.registry.access import ApiKeys
from cloud_hub.registry.audit import AuditLog
from cloud_hub.registry.orders import DenyNotice, Orders
from cloud_hub.registry.presence import DeviceActivity
from cloud_hub.registry.registry import Registry
from cloud_hub.registry.sessions import BrowserSessions
from cloud_hub.repository.publish import PublishResult
from cloud_hub.rollout.catalog import BundleTargets
from cloud_hub.rollout.controller import RolloutController
from cloud_hub.serving.telemetry import InferenceObserver
from cloud_hub.storage.costs import CostEntry
from cloud_hub.storage.ledger_service import LedgerLogService
from cloud_hub.storage.prices import PriceList
from cloud_hub.storage.question_history import QuestionHistory, QuestionRecord
from cloud_hub.storage.retention import LabelTally
from policies.model.policy import Policy
from wire.protocol.messages import Prediction


class HubStatusSource(Protocol):
    """Status and counters of the hub; implemented by `cloud_hub.runtime.hub.Hub`."""

    def status(self) -> dict[str, Any]:
        """Return JSON-able status."""

    def counters(self) -> dict[str, int]:
        """Return monotonic counts by dotted name."""

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Policies whose questions this hub serves and that it has in full."""

    def last_heard(self) -> dict[str, float]:
        """Return the hub time (s) at which each device last signed something, since this process began."""

    @property
    def served(self) -> ServedShards:
        """Shards that this hub serves."""

    def device_activity(self, device: str) -> DeviceActivity:
        """Return whether a device is connected, when it was last heard, and what models it announced."""


class Inference(Protocol):
    """Inference for web callers; implemented by `cloud_hub.serving.web_inference.WebInference`."""

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """Descriptions of the models served now."""

    def card_for(self, model: str) -> ModelCard | None:
        """Description of `digits@7`, or of the newest of `digits`, also where a request would load it first."""

    async def infer(self, model: str, inputs: npt.NDArray[np.generic], wish: InferOptions) -> list[Prediction]:
        """Compute predictions for a batch of inputs (rows first).

        InferRefusedError with the reason if it is refused.
        """

    def check_overload(self, tenant: str) -> None:
        """Raise InferRefusedError if the tenant is over its rate, before its body is read."""


class ModelVersions(Protocol):
    """Loading and retiring of model versions; implemented by `cloud_hub.serving.versions.VersionManager`."""

    def list_models(self) -> list[StoredModel]:
        """Return every version, loaded or not."""

    def describe(self, model: str) -> ModelCard:
        """Return the card of a version, loaded or not. InferRefusedError if it is unknown."""

    async def load(self, model: str) -> None:
        """Load a model, `NAME` or `NAME@VERSION`; returns once it is ready. InferRefusedError if it cannot be."""

    async def unload(self, model: str) -> None:
        """Unload a model; returns once it is gone."""

    def devices_using(self, model: str, now_ms: int) -> dict[str, int]:
        """Return the devices that use a version, with the time (ms) each was last heard."""

    async def retire(self, model: str, now_ms: int, *, force: bool = False) -> dict[str, int]:
        """Retire a version and return the devices that used it. ModelInUseError if some do, unless `force` is set."""


class EngineProbes(Protocol):
    """Health probes of the engines; implemented by `cloud_hub.serving.executor.EnginePool`."""

    async def probe(self) -> list[EngineProbe]:
        """Send one sample through every engine and return the results."""

    def rebuilds(self) -> dict[str, int]:
        """Return how often the groups of ranks of each sharded model were started again."""

    def setups(self) -> dict[str, EngineSetup]:
        """Return what each loaded model runs on."""


class StoreRecords(Protocol):
    """Erasure and aggregates of the store; implemented by `cloud_hub.storage.gateway.StoreGateway`."""

    async def erase_subject(self, wish: ErasureRequest) -> Erasure:
        """Erase a subject's records; returns once no file of the database holds them.

        StoreError if it could not be written, UnfinishedErasureError if a file still holds them.
        """

    async def read_tallies(self) -> list[LabelTally]:
        """Return counts of verdicts."""

    async def read_costs(self, since_day: int, tenant: str | None) -> list[CostEntry]:
        """Return what was used since a day, of one tenant or of all."""

    async def read_history(self, device: str, since_ms: int, period_ms: int) -> QuestionHistory:
        """Return what became of a device's questions since a time; counts by periods of so many ms."""

    async def read_newest(self, limit: int) -> list[QuestionRecord]:
        """Return the newest questions of all devices, newest first."""

    def sign_statement(self, text: bytes) -> bytes:
        """Sign a text with the hub's key."""


class NoticePublisher(Protocol):
    """Sender of notices; implemented by `cloud_hub.runtime.link.OutboundPublisher`."""

    def publish_notice(self, notice: DenyNotice, devices: Iterable[str]) -> None:
        """Send a notice to these devices."""


@dataclass(frozen=True, kw_only=True)
class ApiContext:
    """Everything that the routes need.

    `now_ms` is hub time; `root_sha256` of the TUF root that invites carry, "" = none; `role_expiry`: when each role of
    the update repository expires.

    `gates` limit attempts to enrol, to renew and to sign in. `evict` ends a device's broker session.
    `repository`: the folder with what devices fetch. `keys` and `audit`: who may use the web API, and who did.
    `work`: where statements of the registry, the keys and the orders run. `hears_region`: whether this hub would know
    by now what other hubs have revoked. `clock_fault`: what is wrong with the machine's clock, "" if nothing is: no
    certificates are issued by a wrong one. `overview`: of the region's hubs; None of a hub that is alone.
    `publish_policy`: puts a policy document into the update repository; None: there is none.
    `jobs`: work that outlives its request. `sessions`: of browsers.
    """

    hub: HubStatusSource
    inference: Inference
    versions: ModelVersions
    engines: EngineProbes
    store: StoreRecords
    announcer: NoticePublisher
    observer: InferenceObserver
    registry: Registry
    issuer: EnrollmentService
    renewals: RenewalService
    rotation: CaRotation
    gates: AttemptGates
    now_ms: Callable[[], int]
    evict: Callable[[str], None]
    root_sha256: Callable[[], str] = str
    role_expiry: Callable[[], Mapping[str, datetime]] = dict
    repository: Path | None = None
    orders: Orders = field(default_factory=Orders)
    keys: ApiKeys = field(default_factory=ApiKeys.in_memory)
    audit: AuditLog = field(default_factory=AuditLog)
    ledger: LedgerLogService | None = None
    rollouts: RolloutController | None = None
    catalog: BundleTargets | None = None
    language_models: LanguageModels = field(default_factory=LanguageModels)
    prices: Callable[[], PriceList] = PriceList
    reload_status: Callable[[], dict[str, Any]] = dict
    work: OrderedWork = field(default_factory=OrderedWork)
    hears_region: Callable[[], bool] = lambda: True
    clock_fault: Callable[[], str] = str
    overview: RegionOverview | None = None
    publish_policy: Callable[[bytes], PublishResult] | None = None
    jobs: JobDesk | None = None
    sessions: BrowserSessions = field(default_factory=BrowserSessions)
