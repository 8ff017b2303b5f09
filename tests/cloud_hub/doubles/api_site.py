"""A hub's web API on a free local port, a client, and a small double of the hub behind it."""

import asyncio
import functools
import json
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt

from cloud_hub.api.app import ApiLimits, ApiServer
from cloud_hub.api.auth import Authenticator
from cloud_hub.api.interface import ApiContext
from cloud_hub.console.app import Console
from cloud_hub.core.commands import Erasure, ErasureRequest
from cloud_hub.core.shards import ServedShards
from cloud_hub.core.web_requests import EngineProbe, InferOptions, InferRefusedError, StoredModel
from cloud_hub.engine.base import EchoEngine, ModelCard, WorkItem
from cloud_hub.engine.types import EngineSetup
from cloud_hub.enrollment.ca_rotation import CaRotation
from cloud_hub.enrollment.enrollment import EnrollmentService
from cloud_hub.enrollment.rate_limit import AttemptGates, AttemptLimiter
from cloud_hub.enrollment.renewal import RenewalService
from cloud_hub.enrollment.replies import BrokerAddress, HubAddress
from cloud_hub.llm.service import LanguageModels
from cloud_hub.registry.access import ApiKeys, KeyRequest, Scope
from cloud_hub.registry.audit import AuditLog
from cloud_hub.registry.orders import DenyNotice
from cloud_hub.registry.presence import DeviceActivity
from cloud_hub.registry.registry import Registry
from cloud_hub.security.authorities import RotatingAuthority
from cloud_hub.security.authority import utc_now
from cloud_hub.security.hub_keys import HubCard
from cloud_hub.serving.telemetry import InferenceObserver
from cloud_hub.storage.costs import CostEntry
from cloud_hub.storage.jobs import StoreError
from cloud_hub.storage.ledger_service import LedgerLogService
from cloud_hub.storage.prices import PriceList
from cloud_hub.storage.question_history import QuestionHistory, QuestionRecord
from cloud_hub.storage.retention import LabelTally
from policies.model.policy import Policy
from policies.serving.computing import Precision
from tests.cloud_hub.doubles.joiner import Joiner
from wire.http.access import ServerAccess, parse_networks
from wire.http.path_prefix import PathPrefix
from wire.protocol.messages import ModelRef, Prediction, RefusalReason

CARD = ModelCard(ModelRef("digits", 7, "c", "pack4"), (), ("zero", "one", "two"), "image", "FP32", (2, 2))
OLDER = ModelCard(ModelRef("digits", 6, "c", "pack4"), (), ("zero", "one", "two"), "image", "FP32", (2, 2))
DEVICE = "demo--cam-1"


class EmptyStore:
    """Double of a store without any question. `entries`: its costs."""

    def __init__(self) -> None:
        self.entries: list[CostEntry] = []
        self.history = QuestionHistory([], [])

    async def erase_subject(self, wish: ErasureRequest) -> Erasure:
        raise StoreError(f"nothing is kept of {wish.subject.hex()}")

    async def read_tallies(self) -> list[LabelTally]:
        return []

    async def read_costs(self, since_day: int, tenant: str | None) -> list[CostEntry]:
        return [each for each in self.entries if each.day >= since_day and tenant in (None, each.tenant)]

    async def read_history(self, device: str, since_ms: int, period_ms: int) -> QuestionHistory:
        return self.history

    async def read_newest(self, limit: int) -> list[QuestionRecord]:
        return self.history.questions[:limit]

    def sign_statement(self, text: bytes) -> bytes:
        return text


class EchoVersions:
    """Double of a hub with two model versions that no device uses."""

    def __init__(self, hub: "EchoHub") -> None:
        self._hub = hub

    def list_models(self) -> list[StoredModel]:
        return [
            StoredModel(c.ref.name, str(c.ref.version), "UNAVAILABLE" if c.name in self._hub.unloaded else "READY")
            for c in self._hub.cards
        ]

    def describe(self, model: str) -> ModelCard:
        self._named(model)
        return self._hub.engines[model].card

    async def load(self, model: str) -> None:
        self._named(model)
        self._hub.unloaded.discard(model)

    async def unload(self, model: str) -> None:
        self._named(model)
        self._hub.unloaded.add(model)

    def _named(self, model: str) -> None:
        if model not in self._hub.engines and model != "digits":
            raise InferRefusedError(RefusalReason.MODEL_GONE)

    def devices_using(self, _model: str, _now_ms: int) -> dict[str, int]:
        return {}

    async def retire(self, _model: str, _now_ms: int, *, force: bool = False) -> dict[str, int]:
        raise InferRefusedError(RefusalReason.MODEL_GONE)


class EchoHub:
    """Double of a hub that serves two versions of one model."""

    def __init__(self) -> None:
        self.engines = {card.name: EchoEngine(card) for card in (OLDER, CARD)}
        self.refuse: RefusalReason | None = None
        self.refuse_with: InferRefusedError | None = None
        self.hang = False
        self.probes = 0
        self.wishes: list[InferOptions] = []
        self.observer = InferenceObserver()
        self.unloaded: set[str] = set()
        self.displaced: set[str] = set()  # a request loads them
        self.slow_s, self.gone = 0.0, 0
        self.announced: list[tuple[DenyNotice, tuple[str, ...]]] = []
        self.heard: dict[str, float] = {}
        self.served_policies: tuple[Policy, ...] = ()
        self.served = ServedShards()
        self.facts: dict[str, Any] = {
            "hub": "hub-1",
            "member": "hub",
            "time_ms": 60_000,
            "uptime_s": 1.5,
            "draining": False,
            "shards": 256,
            "link_up": True,
            "store_ok": True,
            "store_fault": "",
            "open": 3,
            "queued": {},
            "replicas": {"digits@7": {"wanted": 3, "running": 2, "need": 2.25, "why": ""}},
        }

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        return tuple(engine.card for name, engine in self.engines.items() if name not in self.displaced)

    def card_for(self, model: str) -> ModelCard | None:
        return next((e.card for e in self.engines.values() if model in (e.card.name, e.card.ref.name)), None)

    async def infer(self, model: str, inputs: npt.NDArray[np.generic], wish: InferOptions) -> list[Prediction]:
        self.wishes.append(wish)
        try:
            await asyncio.sleep(self.slow_s)
        except asyncio.CancelledError:
            self.gone += 1
            raise
        if self.refuse_with:
            raise self.refuse_with
        if self.refuse:
            raise InferRefusedError(self.refuse, 3.0)
        self.observer.timings.add_batch(model, [0.001] * len(inputs), 0.002, 1.0)
        self.observer.timings.add_request_batch(model, [0.001], 1, 0.002)
        self.observer.on_web_request(model, 0.003, answered=True)
        return self.engines[model].infer([WorkItem(raw=row) for row in inputs])

    def check_overload(self, tenant: str) -> None: ...

    async def probe(self) -> list[EngineProbe]:
        self.probes += 1
        await asyncio.sleep(60 if self.hang else 0.05)
        return [EngineProbe(name, not engine.broken, 0.001) for name, engine in self.engines.items()]

    def rebuilds(self) -> dict[str, int]:
        return {"digits@7": 2}

    def setups(self) -> dict[str, EngineSetup]:
        lost = EngineSetup("cpu", Precision.FLOAT32, 4096, "digits@7: the card is gone")
        return {"digits@7": lost, "digits@6": EngineSetup("cuda:0", Precision.BFLOAT16, 2048)}

    def publish_notice(self, notice: DenyNotice, devices: Iterable[str]) -> None:
        self.announced.append((notice, tuple(devices)))

    def status(self) -> dict[str, Any]:
        return self.facts

    @property
    def policies(self) -> tuple[Policy, ...]:
        return self.served_policies

    def last_heard(self) -> dict[str, float]:
        return self.heard

    def device_activity(self, device: str) -> DeviceActivity:
        return DeviceActivity(online=True, last_seen_ms=7, models=("digits@1",))

    def counters(self) -> dict[str, int]:
        return {"intake.accepted": 5, "verdicts": 4}


class Site:
    """A web API on a free local port, and a client."""

    def __init__(
        self, folder: Path, max_body_bytes: int = 4096, clerk: LedgerLogService | None = None, **more: Any
    ) -> None:
        self.hub = EchoHub()
        self.store = EmptyStore()
        self.hub.observer = more.pop("observer", self.hub.observer)
        self.registry = Registry.open(folder / "devices.db")
        self.authority = RotatingAuthority.open(folder, utc_now())
        self.evicted: list[str] = []
        self.keys = ApiKeys.open(folder / "access.db")
        self.audit = AuditLog(folder / "audit.jsonl")
        self.token_file = folder / "admin.token"
        card = HubCard("hub-1", "local", b"h" * 32, b"s" * 32)
        place = HubAddress(BrokerAddress("127.0.0.1", 18883), (card,))
        now_ms = more.pop("now_ms", lambda: int(time.time() * 1000))
        models = more.pop("language_models", None) or LanguageModels()
        rolling = {name: more.pop(name, None) for name in ("rollouts", "catalog", "repository")}
        trusted = {name: more.pop(name) for name in ("clock_fault", "hears_region") if name in more}
        rates = {"rate_per_s": 20.0, "burst": 2000.0, "failures_per_s": 0.1, "failures": 20.0}
        context = ApiContext(
            hub=self.hub,
            inference=self.hub,
            versions=EchoVersions(self.hub),
            engines=self.hub,
            store=self.store,
            announcer=self.hub,
            observer=self.hub.observer,
            registry=self.registry,
            issuer=EnrollmentService(self.registry, self.authority, place),
            renewals=RenewalService(self.registry, self.authority, place),
            rotation=CaRotation(self.authority, self.registry),
            gates=AttemptGates(*(AttemptLimiter(**rates) for _ in AttemptGates._fields)),
            now_ms=now_ms,
            role_expiry=lambda: {"timestamp": utc_now() + timedelta(days=7)},
            evict=self.evicted.append,
            keys=self.keys,
            audit=self.audit,
            ledger=clerk,
            language_models=models,
            prices=more.pop("prices", PriceList),
            jobs=more.pop("jobs", None),
            **rolling,
            **trusted,
        )
        self.context = context
        proxies = parse_networks(more.pop("trusted_proxies", ()))
        self._limits = ApiLimits(
            "1.2.3",
            max_body_bytes=max_body_bytes,
            ready_timeout_s=0.3,
            body_s=0.5,
            idle_s=0.5,
            trusted_proxies=proxies,
            prefix=PathPrefix(more.pop("prefix", "")),
        )
        self._pages = functools.partial(Console, context) if more.pop("console", False) else None
        self._access = more
        self.api = self._make_api()
        self.url = ""
        self.client: aiohttp.ClientSession

    def _make_api(self) -> ApiServer:
        access = ServerAccess(token_file=str(self.token_file), **self._access)
        return ApiServer(self.context, access, self._limits, self._pages)

    async def open(self) -> "Site":
        self.url = await self.api.start(lambda port: f"http://127.0.0.1:{port}")
        self.client = aiohttp.ClientSession()
        return self

    async def open_again(self) -> None:
        """Serve again, after `api.stop`, under the address it had."""
        self._access["port"] = int(self.url.rpartition(":")[2])
        self.api = self._make_api()
        await self.api.start(lambda port: f"http://127.0.0.1:{port}")

    async def close(self) -> None:
        await self.client.close()
        await self.api.stop()
        self.registry.close()
        self.keys.close()

    @property
    def entrance(self) -> Authenticator:
        return self.api.entrance

    @property
    def admin(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token_file.read_text().strip()}"}

    def key(self, tenant: str, *scopes: Scope, expires_s: float = 0.0, at_ms: int | None = None) -> dict[str, str]:
        """The headers of a new key."""
        now_ms = int(time.time() * 1000) if at_ms is None else at_ms
        _, token = self.keys.create(KeyRequest("test", scopes, tenant, expires_s), now_ms)
        return {"Authorization": f"Bearer {token}"}

    async def enrolled(self, device: str) -> None:
        """A device of the registry."""
        token = self.registry.invite(device, int(time.time() * 1000), 60.0).token
        assert (await self.ask("POST", "/v1/enrol", json=Joiner().request(token)))[0] == 200

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """(status, body); the body parsed where it is JSON."""
        async with self.client.request(method, self.url + path, **options) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def invite(self, device: str = DEVICE) -> dict[str, Any]:
        status, invited = await self.ask("POST", "/v1/admin/invites", json={"device": device}, headers=self.admin)
        assert status == 201, invited
        return dict(invited)

    def token(self, device: str = DEVICE) -> str:
        return self.registry.invite(device, int(time.time() * 1000), 60.0).token


def infer_body(rows: int = 1) -> dict[str, Any]:
    data = [float(n) for n in range(rows * 4)]
    return {"id": "q", "inputs": [{"name": "image", "datatype": "FP32", "shape": [rows, 2, 2], "data": data}]}
