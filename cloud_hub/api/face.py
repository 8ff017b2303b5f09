"""What the web API needs of the hub: `cloud_hub.loop.Hub` has it, and so has a test's double."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cloud_hub.engine.base import ModelCard
from cloud_hub.loop import Probe
from wire.messages import Prediction


class HubFace(Protocol):
    """See `cloud_hub.loop.Hub` for what each promises."""

    @property
    def cards(self) -> tuple[ModelCard, ...]: ...

    async def infer(self, model: str, inputs: npt.NDArray[np.generic]) -> list[Prediction]: ...

    async def probe(self) -> list[Probe]: ...

    def status(self) -> dict[str, Any]: ...

    def counters(self) -> dict[str, int]: ...
