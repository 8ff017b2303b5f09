"""A bundle's hub model in this process, in torch: the tail on forwarded codes, the whole model on raw samples.

Rule: everything runs in evaluation mode without gradients; a result that is not a finite number is an `EngineError`.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from cloud_hub.engine.base import EngineError
from cloud_hub.work import Work, card_of
from models.bundle import Bundle
from models.manifest import Kind
from models.zoo import build_tail, build_whole
from wire.messages import Prediction

Module = Callable[[torch.Tensor], torch.Tensor]


class LocalEngine:
    """BundleError if the bundle's architecture or weights cannot be used. `threads`: of torch, for this process."""

    def __init__(self, bundle: Bundle, max_batch: int = 32, threads: int = 1) -> None:
        manifest = bundle.manifest
        self.card = card_of(manifest, max_batch)
        self._kind = manifest.kind
        self._temperature = manifest.temperature
        torch.set_num_threads(threads)
        weights = bundle.read(manifest.hub.file)
        self._tail: Module = build_tail(manifest, weights)
        self._whole: Module = build_whole(manifest, weights)

    def run(self, batch: Sequence[Work]) -> list[Prediction]:
        """Codes and raw samples may be mixed; each kind is one forward pass."""
        field = self.card.features[0].name
        raw = [index for index, work in enumerate(batch) if work.raw is not None]
        codes = [index for index, work in enumerate(batch) if work.raw is None]
        found: dict[int, Prediction] = {}
        found |= self._forward(self._tail, codes, [batch[index].codes[field] for index in codes])
        found |= self._forward(self._whole, raw, [r for r in (batch[index].raw for index in raw) if r is not None])
        return [found[index] for index in range(len(batch))]

    def sample(self) -> Work:
        """The lowest code everywhere."""
        feature = self.card.features[0]
        return Work({feature.name: np.full(feature.shape, int(feature.low), np.uint8)})

    def close(self) -> None:
        """Nothing to give back: the memory goes with the object."""

    def _forward(
        self, module: Module, indices: list[int], arrays: Sequence[npt.NDArray[np.generic]]
    ) -> dict[int, Prediction]:
        if not indices:
            return {}
        stacked = torch.from_numpy(np.stack(arrays).astype(np.float32))
        with torch.inference_mode():
            logits = module(stacked).numpy()
        if not np.isfinite(logits).all():
            raise EngineError("the model gave NaN or infinite values")
        return dict(zip(indices, self._predictions(logits), strict=True))

    def _predictions(self, logits: npt.NDArray[np.float32]) -> list[Prediction]:
        if self._kind is Kind.REGRESSOR:
            return [Prediction(-1, 1.0, tuple(row), self.card.name) for row in logits.tolist()]
        scaled = logits.astype(np.float64) / self._temperature
        scaled -= scaled.max(axis=1, keepdims=True)  # the largest exponent is 0: nothing overflows
        powers = np.exp(scaled)
        scores = powers / powers.sum(axis=1, keepdims=True)
        labels = scores.argmax(axis=1).tolist()
        rows = scores.tolist()
        pairs = zip(labels, rows, strict=True)
        return [Prediction(label, row[label], tuple(row), self.card.name) for label, row in pairs]
