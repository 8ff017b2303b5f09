"""The threshold of this device's class, while it keeps its promise; after that, and for any other model, the policy's.

Law: it only ever narrows: devices ask less than the policy's threshold would have them, never more. Whoever breaks its
promise, or no longer sees what it was calibrated on, goes back to the policy's threshold at once, and stays there over
restarts until a newer edition is put in its place.
"""

from pathlib import Path
from typing import Any

from edge_agent.core.permissions import Ruling
from edge_agent.inference.evaluation import agrees
from models.bundle.manifest import BundleError
from models.bundle.measurements import Metric
from models.bundle.thresholds import ClassThreshold, Thresholds, decode_thresholds
from policies.monitoring.risk import Kept, Promise, observe
from wire.process.exit_codes import Exit, ExitError
from wire.process.files import read_bytes
from wire.process.logging import Log, name
from wire.protocol.messages import Prediction

OFF_FILE = "threshold-off"  # the counter of an edition that has failed here
ANY = "any"
MOST_PENDING = 1024


class Threshold:
    """`kind`: the device's class. `folder`: where a failure is remembered."""

    def __init__(self, edition: Thresholds, kind: str, folder: Path) -> None:
        self._edition = edition
        self._kind = kind if kind in edition.classes else ANY
        self._off = folder / OFF_FILE
        self._ruling: Ruling | None = None
        self._failed = _counter(self._off) >= edition.counter
        self._kept = Kept()
        self._pending: dict[int, Prediction] = {}
        self._serving = ""

    @property
    def entry(self) -> ClassThreshold | None:
        """Of this class; None if the edition has none, or is another model's."""
        return self._edition.classes.get(self._kind) if self._serving == self._edition.model else None

    @property
    def in_force(self) -> float | None:
        """None: the policy's own."""
        return None if self._failed or self.entry is None else self.entry.threshold

    def attach(self, ruling: Ruling) -> None:
        self._ruling = ruling

    def serving(self, model: str) -> None:
        """What answers from now on."""
        self._serving, self._kept = model, Kept()
        self._pending.clear()
        self._apply()

    def audited(self, seq: int, said: Prediction) -> None:
        """An answer that was drawn for an audit, and is stored."""
        if self.in_force is not None:
            self._pending[seq] = said
            if len(self._pending) > MOST_PENDING:
                del self._pending[next(iter(self._pending))]

    def verdict(self, seq: int, said: Prediction, tolerance: float) -> None:
        """What the hub says of it."""
        ours, entry = self._pending.pop(seq, None), self.entry
        if ours is None or entry is None or self._failed:
            return
        self._kept = observe(self._kept, promise_of(entry), ours.confidence, agrees=agrees(ours, said, tolerance))
        if self._kept.broken:
            self.fail("promise")

    def fail(self, why: str) -> None:
        """Back to the policy's threshold, for good."""
        if self._failed or self.entry is None:
            return
        self._failed = True
        Log().warning("threshold_failed", about=name(why))
        try:
            self._off.write_text(str(self._edition.counter), encoding="ascii")
        except OSError:
            Log().warning("threshold_failure_not_kept")
        self._apply()

    def _apply(self) -> None:
        if self._ruling is not None:
            self._ruling.calibrate(self.in_force)

    def facts(self) -> dict[str, Any]:
        """For the status."""
        entry = self.entry
        if entry is None:
            return {"threshold": {"of": "policy"}}
        told: dict[str, Any] = {"of": "policy" if self._failed else "class", "value": entry.threshold}
        told |= {"class": self._kind, "counter": self._edition.counter, "audits": self._kept.audits}
        return {"threshold": told | {"level": round(self._kept.level, 3)}}

    def alarms(self) -> set[str]:
        return {"threshold"} if self._failed and self.entry is not None else set()


def promise_of(entry: ClassThreshold) -> Promise:
    """What the calibration says of it, seen from the hub, which is not always right itself."""
    figures = entry.figures
    counts = figures.metric is Metric.ACCURACY  # an error in units of the target is no share: only the guarantee is
    hub_wrong, wrong = (1.0 - figures.hub, 1.0 - figures.edge) if counts else (0.0, 1.0)
    sure = entry.guarantee.max_risk if entry.guarantee else wrong
    return Promise(entry.threshold, min(1.0, sure + hub_wrong), min(1.0, wrong + hub_wrong))


def open_thresholds(path: Path) -> Thresholds:
    """ExitError(CONFIG), one line, for a file that cannot be used."""
    try:
        return decode_thresholds(read_bytes(path, Exit.CONFIG))
    except BundleError as error:
        raise ExitError(Exit.CONFIG, f"{path}: {error}") from None


def _counter(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1
