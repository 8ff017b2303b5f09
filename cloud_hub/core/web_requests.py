"""Requests of the hub's own web API, queued beside the devices' questions, and the values they exchange. Pure.

Rule: a request that would wait too long is refused at once; samples of a caller that disconnected are not computed.
"""

from collections.abc import Sequence
from math import inf

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.core.admission import AdmissionControl
from cloud_hub.core.commands import LOCAL, AnswerWebSample, BatchItem, Command, QuestionKey
from cloud_hub.core.context import CoreContext
from cloud_hub.engine.types import WorkItem
from policies.serving.admission import RefuseQuestion
from policies.serving.fair_queue import priority_to_band
from wire.protocol.messages import Prediction, RefusalReason


class InferRefusedError(Exception):
    """`WebInference.infer` refused a request: `busy`, `draining`, `model_gone`, `schema` or `engine`.

    `retry_after_s`: when to try again, 0 = unknown.
    """

    def __init__(self, reason: RefusalReason, retry_after_s: float = 0.0) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.retry_after_s = retry_after_s


class StillRunningError(InferRefusedError):
    """A request with the same Idempotency-Key and payload is being computed right now."""


class InferOptions(msgspec.Struct, frozen=True):
    """Options of a web request beside its samples.

    `priority` as in the protocol: 1 = highest, 0 = the default. `timeout_s` 0 = none. `trace`: W3C traceparent or "".
    `idempotency`: the caller's key within its tenant, "" = none; `fingerprint`: hash of its payload. `flow`: the caller
    within the tenant; the flows of a tenant are served in turns. `background`: nobody waits for it.
    `request_bytes`: of its body as it came, for the bill.
    """

    tenant: str = ""
    priority: int = 0
    timeout_s: float = 0.0
    trace: str = ""
    idempotency: str = ""
    fingerprint: bytes = b""
    flow: str = ""
    background: bool = False
    request_bytes: int = 0


class StoredModel(msgspec.Struct, frozen=True):
    """One version of a model in the repository. `state`: READY, LOADING, UNLOADING or UNAVAILABLE, as in the OIP."""

    name: str
    version: str
    state: str
    reason: str = ""


class EngineProbe(msgspec.Struct, frozen=True):
    """Result of one engine self test made just now."""

    model: str
    ok: bool
    seconds: float
    detail: str = ""


REPLY_SHARE = 0.1  # share of a caller's timeout reserved for returning the answer
_DEFAULT_OPTIONS = InferOptions()


class WebRequests:
    """Owns which samples of which model belong to an open web request."""

    def __init__(self, context: CoreContext, turnstile: AdmissionControl) -> None:
        self._context = context
        self._turnstile = turnstile
        self._open: dict[int, tuple[str, int]] = {}  # model and number of samples, by request

    def queue_request(
        self,
        request: int,
        model: str,
        samples: Sequence[npt.NDArray[np.generic]],
        now: float,
        wish: InferOptions = _DEFAULT_OPTIONS,
    ) -> RefuseQuestion | None:
        """Queue the raw samples of a request; None = accepted, else the refusal.

        Each sample is answered by an `AnswerWebSample` command with the key (LOCAL, request, index).
        """
        band, budget_s = priority_to_band(wish.priority), wish.timeout_s if wish.timeout_s > 0 else inf
        refused = self._context.scaling.refuse_entry(model, len(samples)) or self._turnstile.admit_web(
            wish.tenant, (model, band), len(samples), budget_s, now
        )
        if refused is not None:
            self._context.counts[f"web_refused.{refused.reason}"] += 1
            self._context.batcher.count_refused(model, len(samples), refused.reason)
            return refused
        self._open[request] = model, len(samples)
        for index, sample in enumerate(samples):
            work = WorkItem(raw=sample)
            item = BatchItem(
                QuestionKey(LOCAL, request, index), work, now, band=band, weight=work.weight,
                deadline=now + (1.0 - REPLY_SHARE) * budget_s, hard=True, tenant=wish.tenant, flow=wish.flow,
                trace=wish.trace, about=str(index), background=wish.background,
                request_bytes=wish.request_bytes if index == 0 else 0,
            )  # fmt: skip
            self._context.batcher.add_web_item(model, item)
        return None

    def drop_request(self, request: int) -> None:
        """The request was answered or its caller disconnected: what is left is not computed."""
        model, size = self._open.pop(request, ("", 0))
        self._context.batcher.drop_web_items(model, (QuestionKey(LOCAL, request, index) for index in range(size)))

    def answer_sample(self, item: BatchItem, result: Prediction | RefusalReason) -> list[Command]:
        """Command that answers one sample, or nothing if nobody waits for it any more."""
        return [AnswerWebSample(item.key, result)] if self._context.batcher.claim_web_item(item.key) else []

    def refuse_expired(self) -> list[Command]:
        """Commands that refuse samples whose deadline passed before their turn, with `RefusalReason.EXPIRED`."""
        return [
            command
            for item in self._context.batcher.take_expired()
            for command in self.answer_sample(item, RefusalReason.EXPIRED)
        ]

    def refuse_overdue(self, now: float) -> list[Command]:
        """Commands that refuse samples whose model has had no replica for too long, with `RefusalReason.BUSY`."""
        overdue, commands = self._context.scaling.find_overdue(now), list[Command]()
        for item in self._context.batcher.open_web_items() if overdue else ():
            model, _ = self._open.get(item.key.epoch, ("", 0))
            if item.arrived_s <= overdue.get(model, -inf):
                commands += self.answer_sample(item, RefusalReason.BUSY)
        if commands:
            self._context.batcher.remove_dead()  # they leave their places to others
        return commands

    def refuse_all(self) -> list[Command]:
        """Commands that refuse all samples in progress because the hub stops, with `RefusalReason.DRAINING`."""
        return [
            command
            for item in self._context.batcher.open_web_items()
            for command in self.answer_sample(item, RefusalReason.DRAINING)
        ]
