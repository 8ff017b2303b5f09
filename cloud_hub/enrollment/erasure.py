"""Erasure of a subject's data on a device's signed request, and the tombstone that the hub signs as evidence of it.

Rule: only the device can name a subject: what it sends is a hash under a key that never leaves it. Whether there was
anything to forget is no secret from the device, and nobody else can ask.
"""

import base64
from typing import Annotated

import msgspec

from cloud_hub.core.commands import Erasure, ErasureRequest, QuestionKey
from cloud_hub.enrollment.enrollment import Rejection
from cloud_hub.enrollment.renewal import UNKNOWN_DEVICE, authenticate_device
from cloud_hub.registry.device_states import HEARD, Device
from cloud_hub.registry.registry import Registry
from wire.protocol.sealing import (
    MAX_NAMED_QUESTIONS,
    QUESTION_NAME,
    ErasureTombstone,
    SignedStatement,
    build_erase_text,
)

_HEX64 = r"^[0-9a-f]{64}$"


class EraseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of an erasure request.

    `subject`: its keyed hash, hex; data kept until `before_ms` (hub time) is erased. `questions`: names (`EPOCH-SEQ`)
    of questions that the device asked about it, erased whether or not they came with the hash. `proof`: over
    `build_erase_text`.
    """

    device: str
    subject: Annotated[str, msgspec.Meta(pattern=_HEX64)]
    before_ms: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    proof: str
    questions: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=QUESTION_NAME)], ...], msgspec.Meta(max_length=MAX_NAMED_QUESTIONS)
    ] = ()


class ErasureService:
    """Checks erasure requests against the registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def check_request(self, request: EraseRequest, now_ms: int) -> ErasureRequest | Rejection:
        """Check a request and return the core's `ErasureRequest` event. A `before_ms` in the future counts as now.

        Questions are those of the device that signed, whatever their names: no device can name another's.
        """
        text = build_erase_text(request.device, request.subject, request.before_ms, request.questions)
        device: Device | None = authenticate_device(self._registry, request.device, request.proof, text)
        if device is None:
            return Rejection(UNKNOWN_DEVICE, invite=True, kind="stranger")
        if device.state not in HEARD:  # a suspended device may be stolen: a person decides
            return Rejection(f"the device is {device.state}", invite=False, kind=str(device.state))
        keys = tuple(_parse_name(device.id, name) for name in request.questions)
        return ErasureRequest(device.id, bytes.fromhex(request.subject), min(request.before_ms, now_ms), now_ms, keys)


def _parse_name(device: str, name: str) -> QuestionKey:
    epoch, _, seq = name.partition("-")
    return QuestionKey(device, int(epoch, 16), int(seq))


def build_tombstone(done: Erasure, hub: str, region: str) -> bytes:
    """Return the JSON text of a tombstone, ready to be signed."""
    buried = done.stone
    told = ErasureTombstone(
        buried.device, buried.mark.hex(), buried.before_ms, rows=buried.rows, at_ms=buried.at_ms, hub=hub,
        region=region, named=done.named, found=len(done.keys),
    )  # fmt: skip
    return msgspec.json.encode(told)


def attach_signature(text: bytes, signature: bytes) -> SignedStatement:
    """Join a text and its signature into the struct of the reply."""
    return SignedStatement(text.decode(), base64.b64encode(signature).decode())
