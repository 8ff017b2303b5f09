"""An outcome as a run of ten minutes gives it: a partition, a killed hub, and a rollout that was stopped."""

import numpy as np
from msgspec.structs import replace

from simulations.checking.events import HistoryReport
from simulations.report.outcome import (
    GateDecision,
    Latency,
    Outcome,
    RolloutRecord,
    RolloutWave,
    RunCost,
    TimelineMark,
    find_latency_bin,
)

BUCKETS, STEP_S = 84, 10.0
HISTORY = HistoryReport(
    events=4000, accepted=1190, answered=1150, expired=0, refused=40, denied=0, open=0, answers=5000,
    answers_by_hub=1000, late=150, effects=1150, lost=0, doubled=0, flaws={},
    whys={"confident": 3800, "verdict": 1000}, stories=(),
)  # fmt: skip


def outcome(**changes):
    rng = np.random.default_rng(5)
    taken = rng.poisson(100, BUCKETS) * (np.arange(BUCKETS) < 60)
    cut = (np.arange(BUCKETS) >= 18) & (np.arange(BUCKETS) < 30)
    by_hub = np.where(cut, taken // 10, taken // 5)
    answers = {
        "local.confident": taken - taken // 5,
        "hub.verdict": by_hub,
        "local.link_down": taken // 5 - by_hub,
        "correction.verdict": np.roll(taken // 5 - by_hub, 12),
    }
    bins = [{find_latency_bin(0.1): int(n), find_latency_bin(0.4): int(n // 20)} if n else {} for n in by_hub]
    values = {
        "scenario": "sample", "digest": "0123456789abcdef", "question": "Does it hold?", "seed": 1, "devices": 100,
        "duration_s": 600.0, "step_s": STEP_S, "until_s": 840.0, "complete": True, "samples": int(taken.sum()),
        "events": 40_000, "arrivals": series(taken), "answers": {name: series(n) for name, n in answers.items()},
        "right": {name: series(n * 9 // 10) for name, n in answers.items()},
        "latency": (
            Latency("local", tuple({0: int(n)} if n else {} for n in taken)),
            Latency("hub", tuple(bins)),
            Latency(
                "correction",
                tuple({find_latency_bin(120.0): int(n)} if n else {} for n in answers["correction.verdict"]),
            ),
        ),
        "queues": {"eu-1": series(by_hub // 8), "eu-2": series(by_hub // 9)},
        "bytes_by_rule": {"sim@1": series(by_hub * 320), "sim@1+metered": series(by_hub * 100)},
        "states": {"online": series(np.where(cut, 60, 100)), "cut": series(np.where(cut, 40, 0))},
        "counts": {"hub.refused.busy": 40}, "history": HISTORY, "wall": RunCost(3.5, 1, 200 << 20),
        "marks": (
            TimelineMark(180.0, 120.0, "partition", "40 % of the devices"),
            TimelineMark(400.0, 0.0, "kill_hub", "eu-1 killed"),
        ),
        "rollouts": (rollout(),),
    }  # fmt: skip
    return replace(Outcome(**values), **changes)


def rollout():
    exposed = np.concatenate([np.zeros(10), np.full(20, 1), np.full(20, 10), np.zeros(BUCKETS - 50)])
    waves = (RolloutWave("1 %", 100.0, 1), RolloutWave("10 %", 300.0, 10))
    looks = (
        GateDecision(250.0, "pass"),
        GateDecision(360.0, "inconclusive", "too few audits"),
        GateDecision(490.0, "fail", "-4 %", 0.03),
    )
    return RolloutRecord("cam@8", "rolled back", 100.0, 500.0, waves, series(exposed), looks)


def series(values):
    return tuple(int(value) for value in values)
