"""Requests of the hub's own web API, queued beside the devices' questions. Pure.

Rule: a caller is told at once that it would wait too long; one that has hung up is not computed for.

What the hub's web API asks of the hub beside its samples, and what it gets beside predictions: values alone.
"""

from collections.abc import Sequence
from math import inf

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.core.admission import Turnstile
from cloud_hub.core.commands import LOCAL, Command, Hand, Item, Key
from cloud_hub.core.context import CoreContext
from cloud_hub.engine.types import Work
from policies.serving.admission import Refuse
from policies.serving.fair_queue import band_of
from wire.protocol.messages import Prediction, Reason


class InferRefusedError(Exception):
    """`Reception.infer` does not answer: `busy`, `draining`, `model_gone`, `schema` or `engine`."""

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


WAY_BACK = 0.1  # share of a caller's patience that is kept for bringing it the answer
_PLAIN = Wish()


class Web:
    """Owns which samples of which model belong to a request."""

    def __init__(self, context: CoreContext, turnstile: Turnstile) -> None:
        self._context = context
        self._turnstile = turnstile
        self._open: dict[int, tuple[str, int]] = {}  # model and number of samples, by request

    def ask(
        self, request: int, model: str, samples: Sequence[npt.NDArray[np.generic]], now: float, wish: Wish = _PLAIN
    ) -> Refuse | None:
        """Queue whole raw samples; each comes back as `Hand(Key(LOCAL, request, index))`."""
        band, budget_s = band_of(wish.priority), wish.timeout_s if wish.timeout_s > 0 else inf
        refused = self._turnstile.web(wish.tenant, (model, band), len(samples), budget_s, now)
        if refused is not None:
            self._context.counts[f"web_refused.{refused.reason}"] += 1
            return refused
        self._open[request] = model, len(samples)
        for index, sample in enumerate(samples):
            work = Work(raw=sample)
            item = Item(
                Key(LOCAL, request, index), work, now, band=band, weight=work.weight,
                deadline=now + (1.0 - WAY_BACK) * budget_s, hard=True, tenant=wish.tenant, flow=wish.flow,
                trace=wish.trace, about=str(index),
            )  # fmt: skip
            self._context.batcher.add_local(model, item)
        return None

    def drop(self, request: int) -> None:
        """The caller is answered, or went away: what is left is not computed."""
        model, size = self._open.pop(request, ("", 0))
        self._context.batcher.drop_local(model, (Key(LOCAL, request, index) for index in range(size)))

    def hand(self, item: Item, result: Prediction | Reason) -> list[Command]:
        """Nothing if nobody waits for it any more."""
        return [Hand(item.key, result)] if self._context.batcher.take_local(item.key) else []

    def overdue(self) -> list[Command]:
        """Whose time was over before their turn came."""
        return [command for item in self._context.batcher.take_expired() for command in self.hand(item, Reason.EXPIRED)]

    def give_up(self) -> list[Command]:
        """The hub stops: whoever still waits is told to come again."""
        return [command for item in self._context.batcher.locals() for command in self.hand(item, Reason.DRAINING)]
