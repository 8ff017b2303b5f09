"""Random audit reports of device cohorts from a seed, for tests of the quality gate."""

from random import Random

import msgspec

from policies.rollout_rules.cohorts import DeviceQuality
from wire.protocol.rollout import AuditAgreement, AuditQuality, ClassSignals, DeviceSignals

SHARE = 0.02
USUAL = DeviceSignals(
    inferences=360, escalated=70, confidence=300.0, confidence_sq=262.0, p95_us=9000, rss_bytes=100 << 20
)


class Truth(msgspec.Struct, frozen=True):
    """Simulated truth: how often the candidate alone is wrong or right; `accuracy`: of the committed model."""

    worse: float = 0.02
    better: float = 0.02
    accuracy: float = 0.92


GOOD = Truth()
THREE_POINTS = Truth(worse=0.05, better=0.02)
TWENTY_POINTS = Truth(worse=0.22, better=0.02)


def cell(rng: Random, audits: int, truth: Truth, data_class: str = "open") -> AuditAgreement:
    """One device's audits of one class."""
    worse = better = both = 0
    for _ in range(audits):
        dice = rng.random()
        if dice < truth.worse:
            worse += 1
        elif dice < truth.worse + truth.better:
            better += 1
        else:
            both += rng.random() < (truth.accuracy - truth.worse) / (1.0 - truth.worse - truth.better)
    return AuditAgreement(data_class, SHARE, audits, both + better, worse, better)


def canary(rng: Random, devices: int, audits: int, truth: Truth = GOOD) -> list[DeviceQuality]:
    return [one(f"new-{number}", cell(rng, audits, truth)) for number in range(devices)]


def control(rng: Random, devices: int, audits: int, accuracy: float = 0.92) -> list[DeviceQuality]:
    truth = Truth(0.0, 0.0, accuracy)
    return [one(f"old-{number}", cell(rng, audits, truth)) for number in range(devices)]


def one(name: str, *cells: AuditAgreement, signals: DeviceSignals | None = USUAL) -> DeviceQuality:
    return DeviceQuality(name, AuditQuality(cells), signals)


def silent(count: int) -> list[DeviceQuality]:
    return [DeviceQuality(f"silent-{number}") for number in range(count)]


def lying(cohort: list[DeviceQuality], share: float, worse: bool) -> list[DeviceQuality]:
    """The first `share` of the devices report that every audit went one way."""
    count = int(share * len(cohort))
    return [_lie(device, worse) for device in cohort[:count]] + cohort[count:]


def _lie(device: DeviceQuality, worse: bool) -> DeviceQuality:
    assert device.quality
    audits = sum(c.audited for c in device.quality.cells)
    said = AuditAgreement("open", SHARE, audits, 0 if worse else audits, audits if worse else 0, 0 if worse else audits)
    return one(device.device, said, signals=device.signals)


def of_class(name: str, **changed: float) -> DeviceSignals:
    """Signals of one data class alone."""
    usual = {"answers": 360, "escalated": 70, "confidence": 300.0, "confidence_sq": 262.0}
    return msgspec.structs.replace(USUAL, classes=(ClassSignals(name, **{**usual, **changed}),))  # type: ignore[arg-type]
