"""The choice of microbatches: by steps on a clock of the test's own, on a double of a group of ranks."""

from typing import Any

import numpy as np
import pytest

from cloud_hub.engine.sharded import engine
from cloud_hub.engine.sharded.engine import ShardedGraphRunner, SupervisionLimits
from cloud_hub.engine.sharded.group import ShardingPlan
from cloud_hub.engine.sharded.launcher import LocalLauncher
from cloud_hub.engine.sharded.protocol import RankConfig

BATCH = 32
FIRST_S = 10.0  # of a shape: values are planned and buffers made


class TimedGroup:
    """Two stages whose step takes `(m + 1) / (2 m)` seconds in m microbatches, plus `each_s` for each of them."""

    stages = 2

    def __init__(self, each_s: float) -> None:
        self.now_s, self.each_s = 0.0, each_s
        self.seen: list[int] = []

    def monotonic(self) -> float:
        return self.now_s

    def step(self, graph, columns, limit_s, pieces):
        self.now_s += (pieces + 1) / (2 * pieces) + pieces * self.each_s + (FIRST_S if pieces not in self.seen else 0)
        self.seen.append(pieces)


@pytest.mark.parametrize(("each_s", "pieces"), [(0.0, 16), (0.01, 8), (0.05, 4), (0.3, 1)])
def test_the_quickest_number_is_taken_whatever_the_first_step_of_a_shape_costs(monkeypatch, each_s, pieces):
    group: Any = TimedGroup(each_s)
    monkeypatch.setattr(engine, "time", group)
    plan = ShardingPlan("echo", RankConfig(1, 0, 1, 2, "", "gloo", "cpu", 1.0), b"")
    runner = ShardedGraphRunner(plan, SupervisionLimits(), LocalLauncher())
    assert runner._measure_pieces(group, "tail", [np.zeros((BATCH, 3))]) == BATCH // pieces
