"""Engines of the hub's benchmarks: a batch costs `BASE_S` and `ITEM_S` per item, and uses no CPU meanwhile."""

import time
from collections.abc import Sequence

import numpy as np
from msgspec import structs

from benchmarks.harness import questions
from cloud_hub.engine.base import EchoEngine, WorkItem
from wire.protocol.messages import ModelRef, Prediction

BASE_S, ITEM_S, MAX_BATCH = 0.005, 0.0002, 16
VALUES = 64
IDEAL_PER_S = MAX_BATCH / (BASE_S + ITEM_S * MAX_BATCH)
IDEAL_ONE_S = BASE_S + ITEM_S
# The questions of `load` fit it, so that it is asked over MQTT as over HTTP.
CARD = structs.replace(questions.CARD, input_name="input", input_shape=(VALUES,), max_batch=MAX_BATCH)
SIDE = 224
IMAGE = structs.replace(
    CARD, ref=ModelRef("image", 1, "cut", "pack8"), input_dtype="UINT8", input_shape=(SIDE, SIDE, 3), max_batch=1
)


class CostEngine(EchoEngine):
    """Sleeps as long as the model would compute."""

    inline = False

    def __init__(self, base_s: float = BASE_S, item_s: float = ITEM_S) -> None:
        super().__init__(CARD)
        self._cost = (base_s, item_s)
        self._answer = Prediction(0, 1.0, (1.0, 0.0), CARD.name)

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        time.sleep(self._cost[0] + self._cost[1] * len(batch))
        return [self._answer] * len(batch)

    def sample(self) -> WorkItem:
        return WorkItem({"features": np.zeros(questions.CODES, np.uint8)})


class ImageEngine(EchoEngine):
    """Answers at once: what is measured is the way there and back."""

    def __init__(self) -> None:
        super().__init__(IMAGE)

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        return [Prediction(0, 1.0, (1.0, 0.0), IMAGE.name)] * len(batch)
