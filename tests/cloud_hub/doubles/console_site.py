"""A hub's web API with the console, and as much behind it as a test wants: devices, rollouts, jobs, hostile names."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cloud_hub.engine.base import EchoEngine
from cloud_hub.engine.types import ModelCard
from cloud_hub.jobs.states import Job, JobState
from cloud_hub.registry.device_states import DeviceState, StateReason
from cloud_hub.registry.presence import DeviceActivity
from cloud_hub.registry.registry import EnrolledDevice
from cloud_hub.rollout.looks import GateLook
from cloud_hub.rollout.types import (
    BundleTarget,
    DeviceGoal,
    HistoryEntry,
    RolloutDeviceState,
    RolloutError,
    RolloutState,
)
from cloud_hub.rollout.view import RolloutDeviceView, RolloutView, WaveView
from cloud_hub.storage.costs import DAY_MS, CostEntry
from cloud_hub.storage.question_history import (
    HOUR_MS,
    PeriodCount,
    QuestionHistory,
    QuestionOutcome,
    QuestionRecord,
)
from models.bundle.manifest import Provenance
from models.bundle.measurements import LeakageRow, LeakKind
from models.runtime.runner import echo_manifest
from policies.language.document import parse_policy
from policies.rollout_rules.gate import GateOutcome, GateResult
from tests import ROOT
from tests.cloud_hub.doubles.api_site import CARD, Site

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}"
EVIL_ID = "<img src=x onerror=alert(3)>\"'"  # as much of it as an address has room for
SITES = ("eu-de", "eu-fr", "us-east", "ap-south", "plant-7")
_SIGNING, _HPKE = Ed25519PrivateKey.generate().public_key(), X25519PrivateKey.generate().public_key()


def now_ms() -> int:
    return int(time.time() * 1000)


def make_device(name: str, state: DeviceState = DeviceState.ACTIVE, **more: Any) -> EnrolledDevice:
    """A device as the registry has it, without a database."""
    facts = {"why": StateReason.ENROLLED.value, "enrolled_ms": now_ms() - DAY_MS, "changed_ms": now_ms() - DAY_MS}
    ends = {"certificate_ends_ms": now_ms() + 5 * DAY_MS, "serial": "1", **facts, **more}
    return EnrolledDevice(name, state, _SIGNING, _HPKE, **ends)


class ConsoleSite(Site):
    """`word`: put wherever somebody else may choose a text."""

    def __init__(self, folder: Path, word: str = "plain", **more: Any) -> None:
        self.word = word
        self.activities: dict[str, DeviceActivity] = {}
        more = {"rollouts": Rollouts(word), "clerk": Ledgers(word), **more}
        super().__init__(folder, console=True, max_body_bytes=1 << 20, **more)
        object.__setattr__(self.context, "jobs", Jobs(word))  # for the console alone: the API has no jobs here
        self.hub.device_activity = self.activities_of  # type: ignore[method-assign]
        self.hub.served_policies = (
            parse_policy((ROOT / "policies/templates/clinic.toml").read_text()).compile(),
            parse_policy((ROOT / "policies/templates/demo.toml").read_text()).compile(),
        )
        self.store.entries = [
            CostEntry(now_ms() // DAY_MS - day, "demo", word, "eu", kind, 5 + day)
            for day in range(3)
            for kind in ("requests", "engine_us", "bytes", "tokens_in", "tokens_out")
        ]
        served = self.hub.served_policies[1].hash
        self.store.history = make_history(word, word if word == EVIL else served)
        card = make_card(word)
        self.hub.engines[card.name] = EchoEngine(card)

    async def open_again(self) -> None:
        """Serve again, after `api.stop`, under the address it had."""
        jobs = self.context.jobs
        object.__setattr__(self.context, "jobs", None)
        await super().open_again()
        object.__setattr__(self.context, "jobs", jobs)

    def activities_of(self, device: str) -> DeviceActivity:
        return self.activities.get(device, DeviceActivity())

    def fill(self, devices: int) -> None:
        """So many devices at five sites, of which most are online."""
        states = {97: DeviceState.SUSPENDED, 98: DeviceState.RETIRED, 99: DeviceState.REVOKED}
        found = []
        for n in range(devices):
            name = f"demo--cam-{n:06d}"
            found.append(make_device(name, states.get(n % 100, DeviceState.ACTIVE), region=SITES[n % 5]))
            online = n % 20 != 19
            self.activities[name] = DeviceActivity(online, now_ms() - n % 60_000, ("digits@7",), "skerry-agent/1")
        self.registry.take_news(found, 0)

    def add_hostile_devices(self) -> str:
        """Devices whose every text is hostile, as if the registry had let them in; the id of one that has a page."""
        facts = {"region": self.word, "device_class": self.word, "hardware": self.word}
        self.registry.take_news([make_device(name, DeviceState.ACTIVE, **facts) for name in (self.word, EVIL_ID)], 0)
        seen = DeviceActivity(online=True, last_seen_ms=now_ms(), models=(self.word,), agent=self.word)
        self.activities |= dict.fromkeys((self.word, EVIL_ID), seen)
        return EVIL_ID


def make_card(word: str) -> ModelCard:
    """A model with a bundle's report, of which a forge chose every text that it may choose."""
    manifest = echo_manifest()
    rows = (
        LeakageRow(manifest.leakage[0].chain, LeakKind.RECONSTRUCTION, "", word, word, 400, 0.31, 0.36, 0.02, 1.0),
        LeakageRow(manifest.leakage[0].chain, LeakKind.ATTRIBUTE, word, word, word, 400, 0.55, 0.6, 0.5, 0.9),
    )
    evil = {"labels": (word, "one"), "leakage": rows, "codec": word, "cut": word, "files": {word: "0" * 64}}
    provenance = Provenance(model=word, torch=word)
    manifest = msgspec.structs.replace(manifest, name="digits", version=7, provenance=provenance, **evil)
    return msgspec.structs.replace(
        CARD, labels=(word, "one"), leakage=rows, manifest=manifest, features=manifest.features
    )


def make_history(word: str, policy: str) -> QuestionHistory:
    """Questions of each outcome, under this policy."""
    outcomes = ((QuestionOutcome.ANSWERED, ""), (QuestionOutcome.REFUSED, word), (QuestionOutcome.OPEN, ""))
    questions = [
        QuestionRecord(
            device="demo--cam-000000", epoch="ab", seq=n, model=word, policy=policy, created_ms=now_ms() - 900,
            kept_ms=now_ms() - 800, ended_ms=0 if outcome is QuestionOutcome.OPEN else now_ms(), outcome=outcome,
            reason=reason,
        )
        for n, (outcome, reason) in enumerate(outcomes)
    ]  # fmt: skip
    begin_ms = now_ms() // HOUR_MS * HOUR_MS
    return QuestionHistory(questions, [PeriodCount(begin_ms, o, r, word, 7) for o, r in outcomes])


class Rollouts:
    """Double of a rollout controller with one rollout that a person has to look at, and one that was stopped."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.asked: list[tuple[str, str, str]] = []
        self._views = {name: self._make(name, state) for name, state in self._states().items()}

    def _states(self) -> dict[str, RolloutState]:
        return {EVIL_ID if self.word == EVIL else "r1": RolloutState.PAUSED_INCONCLUSIVE, "r2": RolloutState.ABORTED}

    def _make(self, name: str, state: RolloutState) -> RolloutView:
        word, target, back = self.word, BundleTarget("m", 8, "d"), BundleTarget("m", 7, "c")
        gate = GateResult(
            GateOutcome.INCONCLUSIVE,
            word,
            0.1,
            unaudited=(word,),
            effect=-0.01,
            low=-0.1,
            high=0.05,
            audits=90,
            words=(word,),
        )
        waves = tuple(WaveView(n + 1, 10, 10, 9, 4, 1, 0, 8, proven=3) for n in range(3))
        return RolloutView(
            id=name, family=word, target=target, back=back, permit="", to=word, by=word, plan="p" * 64, state=state,
            why=word, made_ms=now_ms() - 60_000, changed_ms=now_ms(), ends_ms=now_ms() + 60_000, wave=1, waves=waves,
            states={"succeeded": 4, "failed": 1}, devices=30, fleet=40, exposed=10,
            controls=10, gone_back=1, per_minute=50,
            approvals=(word,), people=2, inconclusive=1, held=False, excluded_above=0.26, gate=gate, rules={},
            next_step=word, aborts=word, waits_for=(word,), failing=(word,),
        )  # fmt: skip

    def views(self) -> tuple[RolloutView, ...]:
        return tuple(self._views.values())

    def view(self, rollout: str) -> RolloutView:
        if rollout not in self._views:
            raise RolloutError("not_found", f"there is no rollout {rollout!r}")
        return self._views[rollout]

    def looks(self, rollout: str) -> Sequence[GateLook]:
        return [
            GateLook(now_ms() - 10_000 * n, 1, GateOutcome.INCONCLUSIVE, -0.01, -0.2 + n / 50, 0.1, 0.2, 90, 0.08, 0.01)
            for n in range(5, 0, -1)
        ]

    def devices(self, rollout: str) -> Sequence[RolloutDeviceView]:
        states = (RolloutDeviceState.SUCCEEDED, RolloutDeviceState.ROLLED_BACK)
        return [
            RolloutDeviceView(
                f"{self.word}-{n}", n % 3 + 1, states[n % 2], DeviceGoal.CANDIDATE, self.word, self.word, 1, now_ms()
            )
            for n in range(120)
        ]

    async def history(self, rollout: str) -> Sequence[HistoryEntry]:
        return [HistoryEntry(1, now_ms(), self.word, self.word, self.word, RolloutState.RUNNING)]

    async def pause(self, rollout: str, by: str, why: str) -> RolloutView:
        self.asked.append(("pause", rollout, why))
        return self.view(rollout)

    async def abort(self, rollout: str, by: str, why: str, *, revert: bool = False) -> RolloutView:
        self.asked.append(("abort", by, why))
        return self.view(rollout)

    async def resume(self, rollout: str, by: str, why: str, *, accept: bool = False) -> RolloutView:
        raise RolloutError("refused", f"it cannot go on: {self.word}")


class Jobs:
    """Double of a desk with jobs in each state."""

    def __init__(self, word: str) -> None:
        self._jobs = [
            Job(
                id=f"{n:026d}", tenant=word if n % 2 else "", caller="k", shard=1, model=word, state=state,
                made_ms=now_ms(),
                not_before_ms=0, timer_ms=0, timeout_ms=1, fingerprint=b"", why=word,
            )
            for n, state in enumerate([*JobState] * 20)
        ]  # fmt: skip
        self.settings: Any = None

    async def list(self, tenant: str, states: Sequence[JobState], after: str, limit: int) -> list[Job]:
        found = [job for job in self._jobs if job.id > after and (not states or job.state in states)]
        return found[:limit]

    async def count(self) -> dict[JobState, int]:
        return dict.fromkeys(JobState, 20)


class Ledgers:
    """Double of the log of ledger heads, of which one contradicts itself."""

    def __init__(self, word: str) -> None:
        self.flawed = {"demo--cam-000003"}
        self._word = word

    async def describe_ledger(self, _device: str) -> dict[str, Any]:
        head = {"index": 1, "epoch": "ab", "entries": 9, "at_ms": now_ms(), "received_ms": now_ms(), "flaw": self._word}
        spend = [
            {"account": self._word, "period": now_ms() // DAY_MS, "amount": 5},
            {"account": "bytes", "period": now_ms() // DAY_MS, "amount": 9},
        ]
        return {
            "size": 5,
            "root": "",
            "heads": [{**head, "proven": True}, {**head, "flaw": "", "proven": False}],
            "spend": spend,
        }


def list_pages(site: ConsoleSite, device: str) -> list[str]:
    """The address of every page, about this device."""
    from urllib.parse import quote  # noqa: PLC0415

    name, rollout = quote(device, safe=""), quote(site.context.rollouts.views()[0].id, safe="")  # type: ignore[union-attr]
    return [
        "/", f"/devices/{name}", f"/devices/{name}/questions/ab/1", "/rollouts", f"/rollouts/{rollout}", "/models",
        "/models/digits@7", "/policies", "/policies/compare", "/hub", "/jobs", "/costs", "/alarms", "/activity",
    ]  # fmt: skip
