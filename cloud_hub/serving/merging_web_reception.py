"""The web API's side of the hub: a request waits here until its samples are computed, refused, or given up.

Rule: every request ends: with predictions, or with one `InferRefusedError` that says when to come back.
"""

import asyncio
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cloud_hub.core.commands import Hand
from cloud_hub.core.core import HubCore
from cloud_hub.core.merging_web_requests_requests import InferRefusedError, StillRunningError, Wish
from cloud_hub.engine.merging_types_work import ModelCard
from cloud_hub.serving.merging_web_idempotency import Begun, Differs, Idempotency, Running
from cloud_hub.system.merging_clock_pulse import Pulse
from wire.protocol.messages import Prediction, Reason

_AGAIN_S = {Reason.DRAINING: 5.0, Reason.EXPIRED: 1.0}  # for what was queued and is given up
_PLAIN = Wish()


class Reception:
    """`now` is hub time; `round_` obeys what the core wants next."""

    def __init__(self, core: HubCore, now: Callable[[], float], round_: Callable[[], None]) -> None:
        self._core = core
        self._now = now
        self._round = round_
        self._requests: dict[int, _Request] = {}
        self._number = 0
        self._asked_s = 0.0
        self._keys = Idempotency()
        self._pulse = Pulse()

    async def run(self) -> None:
        """Until cancelled."""
        await self._pulse.run()

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """The models that take work now."""
        return self._core.lineup.ready

    def card(self, model: str) -> ModelCard | None:
        """The card of `digits@7`, or of the newest `digits` that is loaded."""
        named = [card for card in self.cards if model in (card.name, card.ref.name)]
        return max(named, key=lambda card: card.ref.version, default=None)

    def quiet_s(self) -> float:
        """How long nobody has asked."""
        return self._now() - self._asked_s

    def overrun(self, tenant: str) -> None:
        """InferRefusedError if this process has no time to read what is asked, let alone to compute it."""
        refused = self._core.overrun(tenant, self._pulse.lag_s, self._now())
        if refused is not None:
            self._core.counts["web_refused.unread"] += 1
            raise InferRefusedError(refused.reason, refused.retry_after_s)

    async def infer(self, model: str, inputs: npt.NDArray[np.generic], wish: Wish = _PLAIN) -> list[Prediction]:
        """Whole-model inference of `inputs` (batch first) through the queue that questions use.

        InferRefusedError otherwise.

        `model` is a name (`digits`, its newest version) or a name with a version (`digits@7`).
        """
        card = self.card(model)
        if card is None:
            raise InferRefusedError(Reason.MODEL_GONE)
        if not card.takes(inputs):
            raise InferRefusedError(Reason.SCHEMA)
        if not wish.idempotency:
            return await self._infer(card.name, inputs, wish)
        return await self._once(card.name, inputs, wish)

    async def _once(self, model: str, inputs: npt.NDArray[np.generic], wish: Wish) -> list[Prediction]:
        name = wish.tenant, wish.idempotency
        found = self._keys.begin(name, wish.fingerprint, self._now())
        if isinstance(found, Running):
            raise StillRunningError(Reason.BUSY, 1.0)
        if isinstance(found, Differs):
            raise InferRefusedError(Reason.CONFLICT)
        if not isinstance(found, Begun):
            return list(found.predictions)
        predictions: list[Prediction] = []
        try:
            predictions = await self._infer(model, inputs, wish)
        finally:
            if predictions:
                self._keys.finish(name, tuple(predictions), self._now())
            else:
                self._keys.abandon(name)
        return predictions

    async def _infer(self, model: str, inputs: npt.NDArray[np.generic], wish: Wish) -> list[Prediction]:
        self._number += 1
        self._asked_s = self._now()
        number = self._number
        refused = self._core.ask_local(number, model, list(inputs), self._now(), wish)
        if refused is not None:
            raise InferRefusedError(refused.reason, refused.retry_after_s)
        request = self._requests[number] = _Request(len(inputs))
        self._round()
        try:
            return await request.future
        finally:
            del self._requests[number]
            self._core.drop_local(number)

    def hand(self, command: Hand) -> None:
        request = self._requests.get(command.key.epoch)
        if request is not None:
            request.put(command.key.seq, command.result)


class _Request:
    """A web request that waits for one prediction per sample."""

    def __init__(self, size: int) -> None:
        self._results: list[Prediction | None] = [None] * size
        self._left = size
        self.future: asyncio.Future[list[Prediction]] = asyncio.get_running_loop().create_future()

    def put(self, index: int, result: Prediction | Reason) -> None:
        if self.future.done():
            return
        if isinstance(result, Reason):
            self.future.set_exception(InferRefusedError(result, _AGAIN_S.get(result, 0.0)))
            return
        self._results[index] = result
        self._left -= 1
        if not self._left:
            self.future.set_result([found for found in self._results if found is not None])
