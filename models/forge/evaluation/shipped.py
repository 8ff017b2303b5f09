"""Batch inference of the two shipped halves: the edge graph by ONNX Runtime, the hub's half by torch.

Rule: every figure of a bundle is taken from these answers, never from the nets that were trained.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.forge.export.benchmark import open_session
from models.forge.training.modules import CONFIDENCE, NOVELTY
from models.runtime.onnx_runner import LOGITS

Values = npt.NDArray[Any]
_BATCH = 256


class EdgeAnswers(NamedTuple):
    """Outputs of the edge graph per sample; None for what the graph does not give.

    `logits` `[n, k]`; `codes` uint8 `[n, *codebook.shape]`; `confidence`, `novelty` `[n]` in 0..1.
    """

    logits: Values
    codes: Values
    confidence: Values | None
    novelty: Values | None


class HubAnswers(NamedTuple):
    """Outputs `[n, outputs]` on the hub: `asked` of the tail on the codes.

    `whole` of the given model on the raw samples.
    """

    asked: Values
    whole: Values


def run_edge_graph(graph: bytes, x: Values) -> EdgeAnswers:
    """Run an edge graph over samples `[n, *shape]` in batches. The codes are its one output of no name of its own."""
    opened = open_session(graph)
    names = [node.name for node in opened.get_outputs()]
    feed = opened.get_inputs()[0].name
    batches = [opened.run(None, {feed: x[start : start + _BATCH]}) for start in range(0, len(x), _BATCH)]
    found = {name: np.concatenate([batch[i] for batch in batches]) for i, name in enumerate(names)}
    (codes,) = found.keys() - {LOGITS, CONFIDENCE, NOVELTY}
    return EdgeAnswers(found[LOGITS], found[codes], found.get(CONFIDENCE), found.get(NOVELTY))
