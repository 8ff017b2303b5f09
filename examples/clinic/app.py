"""Asks two monitors about heartbeats of patients that no part of the model ever saw; `skerry up` runs it."""

import os
import sys
from collections import Counter
from pathlib import Path

import model
import numpy as np

import skerry_client

BEATS = 1200
EXPECTED = (0.885, 0.98)  # of the pair's accuracy: the interval of 95 % in the bundle's report, by its 22 patients
NORMAL = 0  # the label of nearly nine beats in ten


def main() -> int:
    """Exit code 1 if the expected figure is not met."""
    heldout = model.samples().heldout
    patients, learnt = heldout.groups, model.samples().training.groups
    assert patients is not None
    assert learnt is not None
    assert not set(patients) & set(learnt)
    chosen = np.linspace(0, len(heldout.y) - 1, BEATS).astype(int)
    beats, truth = list(heldout.x[0][chosen]), heldout.y[chosen]
    fleet = Path(os.environ["SKERRY_FLEET"])
    with skerry_client.Agent(fleet / "monitor-1") as ward, skerry_client.Agent(fleet / "monitor-2") as noised:
        first = ward.ask_batch(beats, mode="now")
        best = [ward.answers.get(answer, wait_s=30) if answer.may_be_corrected else answer for answer in first]
        under = [noised.answers.get(a, wait_s=30) if a.may_be_corrected else a for a in noised.ask_batch(beats)]
    alone = share_right(first, truth)
    pair = share_right(best, truth)
    asked = sum(answer.asked_hub for answer in best)
    print(f"{BEATS} beats of {len(set(patients))} patients, none of whom the model ever saw")
    print(f"monitor alone             {alone:.1%} right, of those not normal {count_found(first, truth)}")
    print(f"with the hub (ward.toml)  {pair:.1%} right, of those not normal {count_found(best, truth)}; {asked} asked")
    kept = Counter(answer.reason for answer in under if not answer.asked_hub)
    noisy = [answer for answer in under if answer.asked_hub]
    print(
        f"under clinic.toml         {share_right(under, truth):.1%} right, {len(noisy)} asked with noise, {dict(kept)}"
    )
    met = pair > alone and EXPECTED[0] <= pair <= EXPECTED[1] and 0 < len(noisy) <= 58
    print("as expected" if met else "NOT as expected")
    return 0 if met else 1


def share_right(answers: list[skerry_client.Answer], truth: np.ndarray) -> float:
    return float(np.mean([answer.label == label for answer, label in zip(answers, truth, strict=True)]))


def count_found(answers: list[skerry_client.Answer], truth: np.ndarray) -> str:
    """How many beats that are not normal were named right: those that a doctor looks for."""
    found = [answer.label == label for answer, label in zip(answers, truth, strict=True) if label != NORMAL]
    return f"{sum(found)} of {len(found)}"


if __name__ == "__main__":
    sys.exit(main())
