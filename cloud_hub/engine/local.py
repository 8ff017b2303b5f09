"""A bundle's hub model in this process, in torch: the tail on forwarded codes, the whole model on raw samples.

Rule: everything runs in evaluation mode without gradients; a result that is not a finite number is an `EngineError`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from cloud_hub.engine.base import EngineError
from cloud_hub.work import Work, card_of_bundle
from models.bundle import Bundle
from models.graph_hub import open_hub
from models.graph_run import Served
from models.manifest import BundleError, Kind, Manifest
from models.runner import check_values
from wire.messages import Prediction

Arrays = Sequence[npt.NDArray[np.generic]]


class LocalEngine:
    """BundleError if the bundle's graphs or weights cannot be used. `threads`: of torch, for this process."""

    def __init__(self, bundle: Bundle, max_batch: int = 32, threads: int = 1) -> None:
        self.card = card_of_bundle(bundle, max_batch)
        self.device = device_for(bundle.manifest)
        self._manifest = bundle.manifest
        torch.set_num_threads(threads)
        graphs = open_hub(bundle)
        self._tail, self._whole = (_ready(graph, self.device, max_batch) for graph in graphs)

    def run(self, batch: Sequence[Work]) -> list[Prediction]:
        """Codes and raw samples may be mixed; each kind is one forward pass."""
        fields = [field.name for field in self.card.features]
        raw = {index: work.raw for index, work in enumerate(batch) if work.raw is not None}
        codes = [index for index in range(len(batch)) if index not in raw]
        found: dict[int, Prediction] = {}
        if codes:
            columns = [[batch[index].codes[name].astype(np.float32) for index in codes] for name in fields]
            found |= zip(codes, self._forward(self._tail, columns), strict=True)
        if raw:
            for sample in raw.values():
                self._check(sample)
            found |= zip(raw, self._forward(self._whole, [list(raw.values())]), strict=True)
        return [found[index] for index in range(len(batch))]

    def sample(self) -> Work:
        """The lowest code everywhere."""
        return Work({f.name: np.full(f.shape, int(f.low), np.uint8) for f in self.card.features})

    def close(self) -> None:
        """Nothing to give back: the memory goes with the object."""

    def _check(self, sample: npt.NDArray[np.generic]) -> None:
        # a whole number is often an index into a table of weights, and an accelerator does not survive a wrong one
        if sample.dtype.kind in "iu":
            check_values(sample, self._manifest.input)

    def _forward(self, graph: Served, columns: Sequence[Arrays]) -> list[Prediction]:
        inputs = [torch.from_numpy(np.stack(column)).to(self.device) for column in columns]
        try:
            made: torch.Tensor = graph(*inputs)
        except BundleError as error:
            raise EngineError(str(error)) from None
        outputs = made.float().cpu().numpy().reshape(len(made), -1)
        if not np.isfinite(outputs).all():
            raise EngineError("the model gave NaN or infinite values")
        if self._manifest.kind is Kind.REGRESSOR:
            return [Prediction(-1, 1.0, tuple(row), self.card.name) for row in outputs.tolist()]
        return self._labelled(outputs)

    def _labelled(self, logits: npt.NDArray[np.float32]) -> list[Prediction]:
        scaled = logits.astype(np.float64) / self._manifest.hub_temperature
        scaled -= scaled.max(axis=1, keepdims=True)  # the largest exponent is 0: nothing overflows
        powers = np.exp(scaled)
        scores = powers / powers.sum(axis=1, keepdims=True)
        labels = scores.argmax(axis=1).tolist()
        rows = scores.tolist()
        pairs = zip(labels, rows, strict=True)
        return [Prediction(label, row[label], tuple(row), self.card.name) for label, row in pairs]


def device_for(manifest: Manifest) -> torch.device:
    """A graphics card if the bundle was made for one and there is one."""
    wanted = any(name.startswith(("CUDA", "Tensorrt")) for name in manifest.target.providers)
    return torch.device("cuda" if wanted and torch.cuda.is_available() else "cpu")


def _ready(graph: Served, device: torch.device, max_batch: int) -> Served:
    """On its device, and rehearsed for the batch that `warm_up` measures."""
    graph.rehearse(max_batch)
    return graph.to(device)
