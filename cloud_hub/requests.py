"""What the hub's web API asks of the loop, and what it gets: predictions, a refusal, a probe."""

import asyncio

import msgspec

from wire.messages import Prediction, Reason

_AGAIN_S = {Reason.DRAINING: 5.0, Reason.EXPIRED: 1.0}  # for what was queued and is given up


class InferRefusedError(Exception):
    """`Hub.infer` does not answer: `busy`, `draining`, `model_gone`, `schema` or `engine`."""

    def __init__(self, reason: Reason, retry_after_s: float = 0.0) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.retry_after_s = retry_after_s


class StillRunningError(InferRefusedError):
    """The same Idempotency-Key and payload are being computed for somebody else right now."""


class Wish(msgspec.Struct, frozen=True):
    """What a web request wants beside its samples.

    `priority` as in the protocol: 1 = highest, 0 = the default. `timeout_s` 0 = as long as it takes. `trace` is a W3C
    traceparent or "". `idempotency`: the caller's key within its tenant, "" = none; `fingerprint` is of its payload.
    `flow`: who of the tenant asks; its flows take turns.
    """

    tenant: str = ""
    priority: int = 0
    timeout_s: float = 0.0
    trace: str = ""
    idempotency: str = ""
    fingerprint: bytes = b""
    flow: str = ""


class Kept(msgspec.Struct, frozen=True):
    """One version of a model in the repository. `state`: READY, LOADING, UNLOADING or UNAVAILABLE, as OIP says."""

    name: str
    version: str
    state: str
    reason: str = ""


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
            self.future.set_exception(InferRefusedError(result, _AGAIN_S.get(result, 0.0)))
            return
        self._results[index] = result
        self._left -= 1
        if not self._left:
            self.future.set_result([found for found in self._results if found is not None])
