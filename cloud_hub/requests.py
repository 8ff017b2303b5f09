"""What the hub's web API asks of the loop, and what it gets: predictions, a refusal, a probe."""

import asyncio

import msgspec

from wire.messages import Prediction, Reason


class InferRefused(Exception):  # noqa: N818 - reads as the event it is
    """`Hub.infer` does not answer: `busy`, `draining`, `model_gone`, `schema` or `engine`."""

    def __init__(self, reason: Reason, retry_after_s: float = 0.0) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Probe(msgspec.Struct, frozen=True):
    """One engine round trip made just now."""

    model: str
    ok: bool
    seconds: float
    detail: str = ""


class Request:
    """A web request that waits for one prediction per sample."""

    def __init__(self, size: int) -> None:
        self._results: list[Prediction | None] = [None] * size
        self._left = size
        self.future: asyncio.Future[list[Prediction]] = asyncio.get_running_loop().create_future()

    def put(self, index: int, result: Prediction | Reason) -> None:
        if self.future.done():
            return
        if isinstance(result, Reason):
            self.future.set_exception(InferRefused(result))
            return
        self._results[index] = result
        self._left -= 1
        if not self._left:
            self.future.set_result([found for found in self._results if found is not None])
