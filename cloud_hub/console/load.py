"""The hub's load over the last hour, sampled every few seconds: answers, refusals, waiting questions, processor time.

Rule: kept in memory and for people alone; it begins anew with each start of the hub.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from cloud_hub.api.interface import HubStatusSource

SAMPLE_S = 10.0
SAMPLES = 360


class LoadSample(NamedTuple):
    """One sample. `answered`, `refused`: per second since the sample before; `cpu`: share of a core used since it."""

    at_s: int
    answered: float
    refused: float
    waiting: int
    cpu: float


class _Totals(NamedTuple):
    at_s: float
    answered: int
    refused: int
    cpu_s: float


class LoadHistory:
    """Samples of the last hour. `now_ms`: hub time."""

    def __init__(self, hub: HubStatusSource, now_ms: Callable[[], int]) -> None:
        self._hub = hub
        self._now_ms = now_ms
        self.samples: deque[LoadSample] = deque(maxlen=SAMPLES)
        self._before: _Totals | None = None

    async def run(self) -> None:
        """Sample for ever."""
        while True:
            self.take_sample(time.monotonic(), time.process_time())
            await asyncio.sleep(SAMPLE_S)

    def take_sample(self, now_s: float, cpu_s: float) -> None:
        """Take one sample. `now_s`: monotonic; `cpu_s`: this process's processor time."""
        counts = self._hub.counters()
        answered = counts.get("verdicts", 0)
        refused = sum(count for name, count in counts.items() if name.startswith(("refused.", "web_refused.")))
        totals, before = _Totals(now_s, answered, refused, cpu_s), self._before
        self._before = totals
        if before is None:
            return
        passed_s = max(1e-3, totals.at_s - before.at_s)
        self.samples.append(
            LoadSample(
                at_s=self._now_ms() // 1000,
                answered=round((totals.answered - before.answered) / passed_s, 3),
                refused=round((totals.refused - before.refused) / passed_s, 3),
                waiting=int(self._hub.status().get("open", 0)),
                cpu=round((totals.cpu_s - before.cpu_s) / passed_s, 4),
            )
        )

    def plots(self) -> list[dict[str, Any]]:
        """Return the plots of the load: answers and refusals, waiting questions, processor time."""
        times = [sample.at_s for sample in self.samples]
        lines = {
            "Answers and refusals a second": {
                "answered": [s.answered for s in self.samples],
                "refused": [s.refused for s in self.samples],
            },
            "Questions under way": {"open": [float(s.waiting) for s in self.samples]},
            "Processor, percent of a core": {"this hub": [round(100 * s.cpu, 2) for s in self.samples]},
        }
        return [
            {
                "title": title,
                "kind": "lines",
                "times": times,
                "series": [{"label": label, "values": values} for label, values in series.items()],
            }
            for title, series in lines.items()
        ]
