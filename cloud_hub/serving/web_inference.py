"""Web inference: requests of the web API wait here until their samples are computed, refused or abandoned.

Rule: every request ends with predictions or with one `InferRefusedError` that says when to retry. Requests repeated
under one Idempotency-Key (`Idempotency`, pure) are computed once: a key belongs to its tenant and one payload; only
answers are kept, for a day and within bounds, in memory alone.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.core.commands import AnswerWebSample
from cloud_hub.core.core import HubCore
from cloud_hub.core.web_requests import InferOptions, InferRefusedError, StillRunningError
from cloud_hub.engine.types import ModelCard
from cloud_hub.serving.telemetry import InferenceObserver
from cloud_hub.system.clock import LoopLagMonitor
from wire.protocol.messages import Prediction, RefusalReason

LIFE_S = 86_400.0
MAX_KEYS = 4096
MAX_ROWS = 65_536  # predictions remembered, of all keys together

_KeyName = tuple[str, str]  # tenant, key


class NewRequest(msgspec.Struct, frozen=True):
    """A new request: compute it, then call `finish` or `abandon`."""


class RequestRunning(msgspec.Struct, frozen=True):
    """The same request is being computed right now."""


class KeyConflict(msgspec.Struct, frozen=True):
    """The key was used before with another payload."""


class StoredAnswer(msgspec.Struct, frozen=True):
    """The request was answered before, with these predictions."""

    predictions: tuple[Prediction, ...]


class _KnownKey(msgspec.Struct):
    """One remembered key and, once computed, its answer."""

    fingerprint: bytes
    until_s: float
    answer: tuple[Prediction, ...] | None = None


class Idempotency:
    """Remembers Idempotency-Keys with their answers. Times in seconds on one clock."""

    def __init__(self) -> None:
        self._known: OrderedDict[_KeyName, _KnownKey] = OrderedDict()
        self._rows = 0

    def __len__(self) -> int:
        return len(self._known)

    def begin(
        self, name: _KeyName, fingerprint: bytes, now: float
    ) -> NewRequest | RequestRunning | KeyConflict | StoredAnswer:
        """Register a request under its key (tenant, key), or say what is known of it."""
        known = self._known.get(name)
        if known is not None and known.answer is not None and known.until_s <= now:
            self.abandon(name)
            known = None
        if known is None:
            self._known[name] = _KnownKey(fingerprint, now + LIFE_S)
            self._drop_oldest()
            return NewRequest()
        if known.fingerprint != fingerprint:
            return KeyConflict()
        return RequestRunning() if known.answer is None else StoredAnswer(known.answer)

    def finish(self, name: _KeyName, predictions: tuple[Prediction, ...], now: float) -> None:
        """Keep the answer of a request for `LIFE_S`."""
        known = self._known.get(name)
        if known is not None:
            known.answer, known.until_s = predictions, now + LIFE_S
            self._rows += len(predictions)
            self._known.move_to_end(name)
            self._drop_oldest()

    def abandon(self, name: _KeyName) -> None:
        """Free the key: the request failed, or its answer has expired."""
        known = self._known.pop(name, None)
        self._rows -= len(known.answer or ()) if known else 0

    def _drop_oldest(self) -> None:
        """Forget the oldest answers above the bounds; running requests stay, the queue bounds them."""
        while len(self._known) > MAX_KEYS or self._rows > MAX_ROWS:
            oldest = next((name for name, known in self._known.items() if known.answer is not None), None)
            if oldest is None:
                return
            self.abandon(oldest)


# retry time of a request that was queued and then refused
_RETRY_S = {RefusalReason.DRAINING: 5.0, RefusalReason.EXPIRED: 1.0}
_DEFAULT_OPTIONS = InferOptions()


class WebInference:
    """Answers web inference requests through the queue of `HubCore`.

    `now`: hub time in seconds; `round_`: executes the commands that the core has pending; `observer` counts requests.
    """

    def __init__(
        self, core: HubCore, now: Callable[[], float], round_: Callable[[], None], observer: InferenceObserver
    ) -> None:
        self._core = core
        self._observer = observer
        self._now = now
        self._round = round_
        self._requests: dict[int, _WaitingRequest] = {}
        self._number = 0
        self._asked_s = 0.0
        self._keys = Idempotency()
        self._pulse = LoopLagMonitor()

    async def run(self) -> None:
        """Measure the event loop's lag until cancelled."""
        await self._pulse.run()

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """Cards of the models that take work now."""
        return self._core.lineup.ready

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
        found = self._keys.begin(name, wish.fingerprint, self._now())
        if isinstance(found, RequestRunning):
            raise StillRunningError(RefusalReason.BUSY, 1.0)
        if isinstance(found, KeyConflict):
            raise InferRefusedError(RefusalReason.CONFLICT)
        if not isinstance(found, NewRequest):
            return list(found.predictions)
        predictions: list[Prediction] = []
        try:
            predictions = await self._infer_queued(model, inputs, wish)
        finally:
            if predictions:
                self._keys.finish(name, tuple(predictions), self._now())
            else:
                self._keys.abandon(name)
        return predictions

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
