"""Benchmark: false alarms of the drift detector, and its alarms for people it was not calibrated on.

`python -m benchmarks.forge.parts.drift BUNDLE [--data pkg:function] [--column patient] [--resamples N]`. Every sample
goes through the bundle's own runner, one at a time as on a device, and what it answers through
`policies.monitoring.drift`.

Rule: who rings is judged against two references. Streams drawn with replacement from the calibration part have no drift
by construction: each alarm among them is false, and at most one in a hundred may have one. The calibration part's own
people, one by one, show how far a single person is from all of them together, whom the deciles describe.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness.figures import Figure, format_line
from models.bundle.bundle import Bundle, open_bundle
from models.bundle.manifest import BundleError, ModelKind
from models.forge.data.types import DataPart, ForgeError
from models.forge.pipeline.loading import load_data
from models.runtime.onnx_runner import OnnxRunner
from policies.monitoring.drift import FALSE_ALARMS, WITHIN, CalibrationDeciles, DriftMonitor, observe_answer

DATA, COLUMN = "models.zoo.mitbih:samples", "patient"
RESAMPLES = 200
_RIGHT_AFTER = 300  # samples within which an alarm is of use: five minutes of heartbeats
_SEED = 1
_HEAD = "| {} | samples | until the alarm | level at the end | edge {} | below the threshold |\n|" + "---|" * 6


class DriftSample(NamedTuple):
    """Answer of the device to one sample. `loss`: 1 = wrong label, or a regressor's squared error."""

    novelty: float
    confidence: float
    loss: float


class PersonStream(NamedTuple):
    """One person's stream. `until`: number of the sample at which the alarm rang, 0 = it never did."""

    name: str
    until: int
    level: float
    seen: Sequence[DriftSample]


def collect_answers(bundle: Bundle, part: DataPart) -> list[DriftSample]:
    """Of every sample, one at a time: where an activation's scale is measured per batch, a batch answers otherwise."""
    runner = OnnxRunner(bundle)
    found = [runner.infer_one(sample) for sample in part.x[0]]
    runner.close()
    regressor = bundle.manifest.kind is ModelKind.REGRESSOR
    losses = [
        float((one.prediction.scores[0] - y) ** 2) if regressor else float(one.prediction.label != y)
        for one, y in zip(found, part.y, strict=True)
    ]
    return [DriftSample(one.novelty, one.prediction.confidence, loss) for one, loss in zip(found, losses, strict=True)]


def watch_stream(reference: CalibrationDeciles, name: str, stream: Sequence[DriftSample]) -> PersonStream:
    """Until the stream ends; the alarm that counts is the first."""
    drift, until = DriftMonitor(), 0
    for number, seen in enumerate(stream, 1):
        drift = observe_answer(drift, reference, seen.novelty, seen.confidence)
        until = until or (number if drift.alarm else 0)
    return PersonStream(name, until, drift.statistic, stream)


def watch_people(bundle: Bundle, part: DataPart, column: str) -> list[PersonStream]:
    """One stream for each value of the column, in the order in which its samples were recorded."""
    if column not in part.sensitive:
        raise ForgeError(f"--column {column}: the data has {', '.join(sorted(part.sensitive)) or 'no such columns'}")
    reference = build_reference(bundle)
    seen, owners = collect_answers(bundle, part), part.sensitive[column]
    return [
        watch_stream(reference, str(owner), [seen[place] for place in np.flatnonzero(owners == owner)])
        for owner in np.unique(owners)
    ]


def build_reference(bundle: Bundle) -> CalibrationDeciles:
    gate = bundle.manifest.gate
    return CalibrationDeciles(gate.novelty_deciles, gate.confidence_deciles)


def count_false_alarms(reference: CalibrationDeciles, population: Sequence[DriftSample], resamples: int) -> int:
    """How many of so many streams of 10,000 samples drawn from the population ring."""
    lot = random.Random(_SEED)
    return sum(_does_ring(reference, lot.choices(population, k=WITHIN)) for _ in range(resamples))


def _does_ring(reference: CalibrationDeciles, stream: Sequence[DriftSample]) -> bool:
    drift = DriftMonitor()
    for seen in stream:
        drift = observe_answer(drift, reference, seen.novelty, seen.confidence)
        if drift.alarm:
            return True
    return False


def print_table(bundle: Bundle, title: str, found: Sequence[PersonStream]) -> None:
    regressor = bundle.manifest.kind is ModelKind.REGRESSOR
    print(_HEAD.format(title, "RMSE" if regressor else "accuracy"))
    for person in found:
        cells = (
            person.name,
            f"{len(person.seen):,}",
            f"{person.until:,}" if person.until else "none",
            f"{person.level:.2f}",
            format_metric(bundle, person.seen),
            f"{share_below(bundle, person.seen):.1%}",
        )
        print(f"| {' | '.join(cells)} |")
    print(flush=True)


def format_metric(bundle: Bundle, seen: Sequence[DriftSample]) -> str:
    """Accuracy, or RMSE."""
    loss = float(np.mean([one.loss for one in seen])) if seen else float("nan")
    return f"{loss**0.5:.2f}" if bundle.manifest.kind is ModelKind.REGRESSOR else f"{1 - loss:.1%}"


def share_below(bundle: Bundle, seen: Sequence[DriftSample]) -> float:
    threshold = bundle.manifest.calibration.threshold
    return float(np.mean([one.confidence < threshold for one in seen]))


def print_summary(bundle: Bundle, found: Sequence[PersonStream]) -> None:
    rang = [person for person in found if person.until]
    quick = sum(person.until <= _RIGHT_AFTER for person in rang)
    print(f"{len(rang)} of {len(found)} ring, {quick} of them within {_RIGHT_AFTER} samples")
    for word, group in (("who ring", rang), ("who do not", [person for person in found if not person.until])):
        together = [one for person in group for one in person.seen]
        if together:
            told = f"edge {format_metric(bundle, together)}, {share_below(bundle, together):.1%} below the threshold"
            print(f"of those {word}: {told}")


def measure_drift(bundle: Bundle, data: str, column: str, resamples: int) -> Figure:
    """Prints both tables; the figure is the share of streams without drift that ring."""
    given = load_data(data, Path.cwd())
    strangers = watch_people(bundle, given.heldout, column)
    print_table(bundle, f"held out: {column}", strangers)
    print_summary(bundle, strangers)
    if column in given.calibration.sensitive:
        known = watch_people(bundle, given.calibration, column)
        print_table(bundle, f"calibration: {column}", known)
        population = [one for person in known for one in person.seen]
    else:
        population = collect_answers(bundle, given.calibration)
    rang = count_false_alarms(build_reference(bundle), population, resamples)
    terms = (f"{rang} of {resamples} streams of {WITHIN:,}",)
    return Figure(
        "false alarms, drawn from the calibration part", 100 * rang / resamples, "%", 100 * FALSE_ALARMS, terms=terms
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forge.parts.drift", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", default=DATA, help="pkg:function, as for the forge")
    parser.add_argument("--column", default=COLUMN, help="whose samples are one stream")
    parser.add_argument("--resamples", type=int, default=RESAMPLES)
    asked = parser.parse_args()
    try:
        found = measure_drift(open_bundle(asked.bundle), asked.data, asked.column, asked.resamples)
    except (BundleError, ForgeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{format_line(found)} {'; '.join(found.terms)}")
    return 0 if found.held else 1


if __name__ == "__main__":
    sys.exit(main())
