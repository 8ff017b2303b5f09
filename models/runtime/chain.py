"""Digest of a feature chain (cut, codec, transforms): the key of leakage measurements and of policies bound to them.

Rule: two chains that can send different codes have different digests; a step that can change no code is left out of
the digest, so that a policy which merely restates the codes' range needs no measurement of its own.
Standard library and messages only.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

from wire.protocol.messages import FieldSpec

_TOP = 255  # the largest code: codes are bytes, and a value beyond would wrap round


class Transform(Protocol):
    """Interface of one transform of a field's values; `policies.model.policy.TransformSpec` satisfies it."""

    @property
    def kind(self) -> str: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def step(self) -> float: ...
    @property
    def values(self) -> Sequence[float]: ...
    @property
    def words(self) -> Sequence[str]: ...


class TransformStep(NamedTuple):
    """One transform by value, for measurements without a policy.

    What its numbers mean: `models/runtime/transforms.py`. `noise`: standard deviation `step` codes, grid `high` (0 = 1
    code); `top_k`: the `step` largest are kept, or those farthest from `values[0]` if there is one. `words`: names of
    patterns, of `redact` alone.
    """

    kind: str
    low: float = 0.0
    high: float = 0.0
    step: float = 0.0
    values: tuple[float, ...] = ()
    words: tuple[str, ...] = ()


class CodeRange(Protocol):
    """Interface of a field's name and the range of its codes; `wire.protocol.messages.FieldSpec` satisfies it."""

    @property
    def name(self) -> str: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class FieldChain(Protocol):
    """Interface of one feature and its transforms; `policies.decisions.egress.FieldPlan` satisfies it."""

    @property
    def spec(self) -> CodeRange: ...
    @property
    def transforms(self) -> Sequence[Transform]: ...


class FeatureChain(NamedTuple):
    """One feature and its transforms by value. Without transforms: the codes as the model makes them."""

    spec: CodeRange
    transforms: Sequence[Transform] = ()


def digest_chain(cut: str, codec: str, fields: Iterable[FieldChain]) -> str:
    """Compute the SHA-256 (hex) of a chain: cut, codec and, per feature in the model's order, its name and its steps.

    `fields` are the model's own features, whole numbers from `low` to `high`. What the device derives from the answer
    (its label, its confidence) is not part of a chain: a leakage row states what the label alone gives as its floor.
    Each part is hashed with its length in front (4 bytes, big-endian), so no two lists of parts collide.
    """
    parts = [cut, codec]
    for each in fields:
        steps = effective_steps(each.transforms, each.spec.low, each.spec.high)
        parts += [each.spec.name, *map(_encode_step, steps), ""]
    sized = [part.encode() for part in parts]
    return sha256(b"".join(len(part).to_bytes(4, "big") + part for part in sized)).hexdigest()


class SentField(Protocol):
    """Interface of a field as a policy lets it leave; `policies.decisions.egress.FieldPlan` satisfies it."""

    @property
    def spec(self) -> FieldSpec: ...
    @property
    def transforms(self) -> Sequence[Transform]: ...


def digest_sent_chain(cut: str, codec: str, fields: Iterable[SentField]) -> str:
    """Compute the digest of what leaves: as `digest_chain`, but what is redacted in a text is left out.

    The measurement of a text is of all of it. What a policy takes out of it gives away no more, so that the
    measurement holds as an upper bound for every list of patterns; any other step needs a measurement of its own.
    """
    chains = [
        FeatureChain(each.spec, [step for step in each.transforms if not _is_redaction(each.spec, step)])
        for each in fields
    ]
    return digest_chain(cut, codec, chains)


def _is_redaction(spec: FieldSpec, step: Transform) -> bool:
    return spec.category == "text" and str(step.kind) == "redact"


def effective_steps(transforms: Iterable[Transform], low: float, high: float) -> tuple[TransformStep, ...]:
    """Return the steps that can change a whole number in `low..high`, in order.

    Dropped are a clip that contains every value that can still occur, and rounding to 1 while values are whole.
    """
    left: list[TransformStep] = []
    known = whole = True  # codes are whole and in range; a step that rounds or has fractions ends what is known
    for each in transforms:
        kind, is_clip = str(each.kind), str(each.kind) == "clip"
        if known and is_clip and each.low <= low and high <= each.high:
            continue
        if whole and kind == "quantise" and each.step == 1:
            continue
        whole = whole and kind in {"clip", "quantise"} and _is_whole(each)
        low, high = min(max(low, each.low), each.high), max(min(high, each.high), each.low)
        known = known and is_clip and whole and 0 <= low <= high <= _TOP
        numbers = (float(each.low), float(each.high), float(each.step))
        left.append(TransformStep(kind, *numbers, tuple(map(float, each.values)), tuple(each.words)))
    return tuple(left)


def _is_whole(step: Transform) -> bool:
    """Tell whether a step's numbers are all whole, so that it keeps whole values whole."""
    return all(float(value).is_integer() for value in (step.low, step.high, step.step))


def _encode_step(step: TransformStep) -> str:
    """Encode a step as text for the digest.

    Floats by `hex`: exact, and one spelling for one value (0.0 is added to turn -0.0 into 0.0).
    """
    numbers = (step.low, step.high, step.step, *step.values)
    words = ("|", *step.words) if step.words else ()
    return " ".join((step.kind, *((value + 0.0).hex() for value in numbers), *words))
