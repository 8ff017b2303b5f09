"""What the two shipped halves answer to whole arrays: the edge graph through ONNX Runtime, the hub's through torch.

Law: every figure of a bundle is taken from these answers, never from the nets that were trained.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import nn

from models.forge.export.benchmark import session
from models.forge.training.modules import CONFIDENCE, NOVELTY
from models.forge.training.teacher import ask
from models.runtime.onnx_runner import LOGITS

Values = npt.NDArray[Any]
_BATCH = 256


class EdgeAnswers(NamedTuple):
    """Per sample: `logits` `[n, k]`, `codes` uint8 `[n, *codebook.shape]`; None for what the graph does not give."""

    logits: Values
    codes: Values
    confidence: Values | None
    novelty: Values | None


class HubAnswers(NamedTuple):
    """`asked`: the tail's outputs on the codes; `whole`: the given model's on the raw samples; `[n, outputs]`."""

    asked: Values
    whole: Values


def edge_answers(graph: bytes, x: Values, feature: str) -> EdgeAnswers:
    opened = session(graph)
    names = [node.name for node in opened.get_outputs()]
    feed = opened.get_inputs()[0].name
    batches = [opened.run(None, {feed: x[start : start + _BATCH]}) for start in range(0, len(x), _BATCH)]
    found = {name: np.concatenate([batch[i] for batch in batches]) for i, name in enumerate(names)}
    return EdgeAnswers(found[LOGITS], found[feature], found.get(CONFIDENCE), found.get(NOVELTY))


def hub_answers(tail: nn.Module, whole: nn.Module, codes: Values, x: Values) -> HubAnswers:
    return HubAnswers(ask(tail, codes.astype(np.float32)).numpy(), ask(whole, x).numpy())
