"""What the web API needs of the hub: `cloud_hub.loop.Hub` has it, and so has a test's double."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cloud_hub.aggregates import Tally
from cloud_hub.commands import Erase, Tombstone
from cloud_hub.engine.base import ModelCard
from cloud_hub.orders import Notice
from cloud_hub.requests import Kept, Probe, Wish
from cloud_hub.rollout_making import Order
from cloud_hub.rollout_view import DeviceView, View
from cloud_hub.rollout_words import Entry
from cloud_hub.versions import Versions
from cloud_hub.watch import Observer
from wire.messages import Prediction


class Records(Protocol):
    """See `cloud_hub.pen.StoreGateway`."""

    async def erase(self, wish: Erase) -> Tombstone: ...

    async def tallies(self) -> list[Tally]: ...

    def testify(self, text: bytes) -> bytes: ...


class RolloutsDesk(Protocol):
    """See `cloud_hub.rollouts.Rollouts`. A rollout is named by its id; RolloutError says why not."""

    def views(self) -> tuple[View, ...]: ...

    def view(self, rollout: str) -> View: ...

    def devices(self, rollout: str) -> Sequence[DeviceView]: ...

    async def history(self, rollout: str) -> Sequence[Entry]: ...

    async def start(self, order: Order, by: str) -> View: ...

    async def pause(self, rollout: str, by: str, why: str) -> View: ...

    async def resume(self, rollout: str, by: str) -> View: ...

    async def abort(self, rollout: str, by: str, why: str, *, revert: bool = False) -> View: ...

    async def approve(self, rollout: str, by: str, digest: str) -> View: ...


class HubFace(Protocol):
    """See `cloud_hub.loop.Hub` for what each promises."""

    @property
    def cards(self) -> tuple[ModelCard, ...]: ...

    async def infer(self, model: str, inputs: npt.NDArray[np.generic], wish: Wish) -> list[Prediction]: ...

    def overrun(self, tenant: str) -> None: ...

    def repository(self) -> list[Kept]: ...

    async def load(self, model: str) -> None: ...

    async def unload(self, model: str) -> None: ...

    @property
    def watch(self) -> Observer: ...

    @property
    def versions(self) -> Versions: ...

    async def probe(self) -> list[Probe]: ...

    @property
    def store(self) -> Records: ...

    def announce(self, notice: Notice, devices: Iterable[str]) -> None: ...

    def status(self) -> dict[str, Any]: ...

    def counters(self) -> dict[str, int]: ...
