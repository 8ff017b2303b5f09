"""What the hub's web API asks of the hub beside its samples, and what it gets beside predictions: values alone."""

import msgspec

from wire.protocol.messages import Reason


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
