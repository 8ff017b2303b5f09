"""Web inference: requests of the web API wait here until their samples are computed, refused or abandoned.

Rule: every request ends with predictions or with one `InferRefusedError` that says when to retry. Requests repeated
under one Idempotency-Key are computed once, see `idempotency`.
"""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import numpy.typing as npt

from cloud_hub.core.commands import AnswerWebSample
from cloud_hub.core.core import HubCore
from cloud_hub.core.replica_scaling import ROOM_RETRY_S
from cloud_hub.core.web_requests import InferOptions, InferRefusedError, StillRunningError
from cloud_hub.engine.types import ModelCard
from cloud_hub.serving.idempotency import (
    KeyConflict,
    KeyStatus,
    KeysUnavailableError,
    MemoryKeys,
    NewRequest,
    RequestKeys,
    RequestRunning,
)
from cloud_hub.serving.telemetry import InferenceObserver
from cloud_hub.system.clock import LoopLagMonitor
from wire.protocol.messages import Prediction, RefusalReason

# retry time of a request that was queued and then refused
_RETRY_S = {RefusalReason.DRAINING: 5.0, RefusalReason.EXPIRED: 1.0, RefusalReason.BUSY: ROOM_RETRY_S}
_DEFAULT_OPTIONS = InferOptions()


class WebInference:
    """Answers web inference requests through the queue of `HubCore`.

    `now`: hub time in seconds; `round_`: executes the commands that the core has pending; `observer` counts requests.
    `keys`: the Idempotency-Keys, without it those of this hub alone.
    """

    def __init__(
        self,
        core: HubCore,
        now: Callable[[], float],
        round_: Callable[[], None],
        observer: InferenceObserver,
        keys: RequestKeys | None = None,
    ) -> None:
        self._core = core
        self._observer = observer
        self._now = now
        self._round = round_
        self._requests: dict[int, _WaitingRequest] = {}
        self._number = 0
        self._asked_s = 0.0
        self._keys = keys or MemoryKeys(now)
        self._pulse = LoopLagMonitor()

    async def run(self) -> None:
        """Measure the event loop's lag and keep the Idempotency-Keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pulse.run(), name="hub-lag")
            group.create_task(self._keys.run(), name="hub-request-keys")

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """Cards of the models that take work now: loaded, or scaled to zero and loaded for whoever asks."""
        return (*self._core.lineup.ready, *self._core.lineup.resting)

    def card_for(self, model: str) -> ModelCard | None:
        """Card of `digits@7`, or of the newest loaded version of `digits`; None if there is none.

        A version that was unloaded to make room counts where no loaded one is meant: it is loaded again.
        """
        lineup = self._core.lineup
        named = [card for card in lineup.ready if model in (card.name, card.ref.name)]
        named = named or [card for card in lineup.displaced if model in (card.name, card.ref.name)]
        return max(named, key=lambda card: card.ref.version, default=None)

    def idle_s(self) -> float:
        """Seconds since the last request."""
        return self._now() - self._asked_s

    def check_overload(self, tenant: str) -> None:
        """InferRefusedError if this process is too overloaded to even read the request."""
        refused = self._core.check_overload(tenant, self._pulse.lag_s, self._now())
        if refused is not None:
            self._core.counts["web_refused.unread"] += 1
            raise InferRefusedError(refused.reason, refused.retry_after_s)

    async def infer(
        self, model: str, inputs: npt.NDArray[np.generic], wish: InferOptions = _DEFAULT_OPTIONS
    ) -> list[Prediction]:
        """Predict `inputs` (batch first) with the whole model, through the queue that questions use.

        `model` is a name (`digits`, its newest version) or a name with a version (`digits@7`).
        InferRefusedError if it is refused.
        """
        card = self.card_for(model)
        if card is None:
            raise InferRefusedError(RefusalReason.MODEL_GONE)
        began = self._now()
        try:
            predictions = await self._infer_known(card, inputs, wish)
        except InferRefusedError:
            self._observer.on_web_request(card.name, self._now() - began, answered=False)
            raise
        self._observer.on_web_request(card.name, self._now() - began, answered=True)
        return predictions

    async def _infer_known(
        self, card: ModelCard, inputs: npt.NDArray[np.generic], wish: InferOptions
    ) -> list[Prediction]:
        if not card.accepts_inputs(inputs):
            raise InferRefusedError(RefusalReason.SCHEMA)
        if not wish.idempotency:
            return await self._infer_queued(card.name, inputs, wish)
        return await self._infer_once(card.name, inputs, wish)

    async def _infer_once(self, model: str, inputs: npt.NDArray[np.generic], wish: InferOptions) -> list[Prediction]:
        name = wish.tenant, wish.idempotency
        found = await _ask_keys(self._keys.begin(name, wish.fingerprint))
        if not isinstance(found, NewRequest):
            return _read_answer(found)
        predictions: list[Prediction] = []
        try:
            predictions = await self._infer_queued(model, inputs, wish)
        finally:
            if not predictions:
                self._keys.abandon(name)
        return _read_answer(await _ask_keys(self._keys.finish(name, tuple(predictions))))

    async def _infer_queued(self, model: str, inputs: npt.NDArray[np.generic], wish: InferOptions) -> list[Prediction]:
        self._number += 1
        self._asked_s = self._now()
        number = self._number
        refused = self._core.queue_web_request(number, model, list(inputs), self._now(), wish)
        if refused is not None:
            raise InferRefusedError(refused.reason, refused.retry_after_s)
        request = self._requests[number] = _WaitingRequest(len(inputs))
        self._round()
        try:
            return await request.future
        finally:
            del self._requests[number]
            self._core.drop_web_request(number)

    def answer_sample(self, command: AnswerWebSample) -> None:
        """Deliver the result of one sample to the request that waits for it."""
        request = self._requests.get(command.key.epoch)
        if request is not None:
            request.put_result(command.key.seq, command.result)


async def _ask_keys(work: Awaitable[KeyStatus]) -> KeyStatus:
    """What is known of a key. InferRefusedError(BUSY) if that cannot be found out now."""
    try:
        return await work
    except KeysUnavailableError:
        raise InferRefusedError(RefusalReason.BUSY, 1.0) from None


def _read_answer(found: KeyStatus) -> list[Prediction]:
    """The stored answer of a key. InferRefusedError if there is none, or its request was another one."""
    if isinstance(found, KeyConflict):
        raise InferRefusedError(RefusalReason.CONFLICT)
    if isinstance(found, NewRequest | RequestRunning):
        raise StillRunningError(RefusalReason.BUSY, 1.0)
    return list(found.predictions)


class _WaitingRequest:
    """A web request that waits for one prediction per sample."""

    def __init__(self, size: int) -> None:
        self._results: list[Prediction | None] = [None] * size
        self._left = size
        self.future: asyncio.Future[list[Prediction]] = asyncio.get_running_loop().create_future()

    def put_result(self, index: int, result: Prediction | RefusalReason) -> None:
        if self.future.done():
            return
        if isinstance(result, RefusalReason):
            self.future.set_exception(InferRefusedError(result, _RETRY_S.get(result, 0.0)))
            return
        self._results[index] = result
        self._left -= 1
        if not self._left:
            self.future.set_result([found for found in self._results if found is not None])
