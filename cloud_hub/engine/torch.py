"""Engine that runs a bundle's hub model in PyTorch, in this process: the tail on codes, the whole model on raw samples.

Rule: everything runs in evaluation mode without gradients, on the device that the bundle was made for.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from cloud_hub.engine.base import EngineError, EngineHealth, EngineState
from cloud_hub.engine.bundle import TAIL, WHOLE, Array, BundleEngine
from cloud_hub.engine.types import make_bundle_card
from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError, Manifest
from models.graph.hub_model import open_hub_graphs
from models.graph.module import HubGraphModule


class TorchGraphRunner:
    """The two PyTorch graphs of a bundle on one device. BundleError at `start` if graphs or weights cannot be used.

    `threads`: of torch, for the whole process.
    """

    ranks = ()

    def __init__(self, bundle: Bundle, threads: int = 1) -> None:
        self.device = choose_device(bundle.manifest)
        self.inline = self.device.type == "cpu"  # an accelerator belongs to one thread
        self._bundle: Bundle | None = bundle
        self._threads = threads
        self._served: dict[str, HubGraphModule] = {}

    def start(self) -> None:
        torch.set_num_threads(self._threads)
        if self._bundle is None:
            return  # started before
        graphs, self._bundle = open_hub_graphs(self._bundle), None  # frees the file's bytes, the tensors stay
        self._served = {TAIL: graphs.tail.to(self.device), WHOLE: graphs.whole.to(self.device)}

    def run(self, graph: str, columns: Sequence[Array]) -> npt.NDArray[np.float32]:
        try:
            made: torch.Tensor = self._served[graph](*map(self._to_device, columns))
        except BundleError as error:
            raise EngineError(str(error)) from None
        found: npt.NDArray[np.float32] = made.float().cpu().numpy()
        return found

    def health(self) -> EngineHealth:
        return EngineHealth(EngineState.READY if self._served else EngineState.NEW)

    def stop(self) -> None:
        self._served = {}

    def _to_device(self, column: Array) -> torch.Tensor:
        tensor = torch.from_numpy(column)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)


class TorchEngine(BundleEngine):
    """Bundle engine on PyTorch in this process."""

    def __init__(self, bundle: Bundle, max_batch: int = 32, threads: int = 1) -> None:
        graphs = TorchGraphRunner(bundle, threads)
        self.device = graphs.device
        super().__init__(bundle.manifest, make_bundle_card(bundle, max_batch), graphs)


def choose_device(manifest: Manifest) -> torch.device:
    """Choose a graphics card if the bundle was made for one and one is present, else the CPU."""
    wanted = any(name.startswith(("CUDA", "Tensorrt")) for name in manifest.target.providers)
    return torch.device("cuda" if wanted and torch.cuda.is_available() else "cpu")
