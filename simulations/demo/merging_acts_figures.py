"""The demo's figures: what clients saw, beside what the databases of both sides prove."""

import time
from typing import Any

from simulations.checking.databases import judge_run
from simulations.demo.merging_acts_play import Play
from simulations.demo.results import accuracy, counts, doubled_corrections, latency
from simulations.processes import Stage


def figures(play: Play, stage: Stage) -> dict[str, Any]:
    """One JSON-able value: `skerry demo --json` writes it, the summary shows it.

    `lost`, `doubled`: of the record, by the history checker over every agent.db and the hub's database. `bytes.sent`:
    every byte the agents published (questions, repeats, asks, hellos). `bytes.raw`: the samples as the agents got them.
    """
    seen = list(play.tally.seen.values())
    report = judge_run([agent.database for agent in stage.agents], stage.hub.database if stage.hub else None)
    first = play.tally.first_escalated_at_s
    return {
        "agents": len(stage.agents),
        "answers": {**counts(seen), "refused": report.refused, "expired": report.expired},
        "accuracy": {name: round(value, 4) for name, value in accuracy(seen).items()},
        "bytes": {
            "sent": sum(int(status["bytes_sent"]) for status in play.status.values()),
            "raw": sum(s.truth.raw_bytes for s in seen),
        },
        "latency_ms": latency(seen),
        "lost": report.lost,
        "doubled": report.doubled + doubled_corrections(seen),
        "broker_killed_at_s": play.broker_killed_at_s,
        "first_escalated_answer_s": None if first is None else round(first, 2),
        "seconds": round(time.monotonic() - play.began, 1),
    }
