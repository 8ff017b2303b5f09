"""Names one exact chain of cut, codec and transforms: the key under which leakage is measured and policies are bound.

Law: two chains that can send different codes have different names; a step that can change no code is left out of the
name, so that a policy which merely restates the codes' range needs no measurement of its own. Standard library only.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

_TOP = 255  # codes are bytes: a value beyond wraps round


class Transform(Protocol):
    """What a policy does to a field's values; the fields of `policies.model.policy.TransformSpec` satisfy it."""

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


class Step(NamedTuple):
    """One transform by value, for measurements without a policy. What its numbers mean: `models/runtime/transforms.py`.

    `noise`: standard deviation `step` codes, grid `high` (0 = 1 code); `top_k`: the `step` largest are kept.
    """

    kind: str
    low: float = 0.0
    high: float = 0.0
    step: float = 0.0
    values: tuple[float, ...] = ()
    words: tuple[str, ...] = ()


class Range(Protocol):
    """A field's name and the range of its codes; `wire.protocol.messages.FieldSpec` satisfies it."""

    @property
    def name(self) -> str: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class Plan(Protocol):
    """One feature and what is done to it; `policies.decisions.egress.FieldPlan` satisfies it."""

    @property
    def spec(self) -> Range: ...
    @property
    def transforms(self) -> Sequence[Transform]: ...


class Field(NamedTuple):
    """A plan by value. Without transforms: the codes as the model makes them."""

    spec: Range
    transforms: Sequence[Transform] = ()


def digest(cut: str, codec: str, fields: Iterable[Plan]) -> str:
    """SHA-256 over cut, codec and, per feature in the model's order, its name and its steps; each part with its length.

    `fields` are the model's own features, whole numbers from `low` to `high`. What the device derives from the answer
    (its label, its confidence) is not part of a chain: a leakage row states what the label alone gives as its floor.
    """
    parts = [cut, codec]
    for each in fields:
        steps = effective(each.transforms, each.spec.low, each.spec.high)
        parts += [each.spec.name, *map(_words, steps), ""]
    sized = [part.encode() for part in parts]
    return sha256(b"".join(len(part).to_bytes(4, "big") + part for part in sized)).hexdigest()


def effective(transforms: Iterable[Transform], low: float, high: float) -> tuple[Step, ...]:
    """The steps that can change a whole number in `low..high`, in order.

    Dropped are a clip that contains every value that can still occur, and rounding to 1 while values are whole.
    """
    left: list[Step] = []
    known = whole = True  # codes are whole and in range; a step that rounds or has fractions ends what is known
    for each in transforms:
        kind, is_clip = str(each.kind), str(each.kind) == "clip"
        if known and is_clip and each.low <= low and high <= each.high:
            continue
        if whole and kind == "quantise" and each.step == 1:
            continue
        whole = whole and kind in {"clip", "quantise"} and _whole(each)
        low, high = min(max(low, each.low), each.high), max(min(high, each.high), each.low)
        known = known and is_clip and whole and 0 <= low <= high <= _TOP
        numbers = (float(each.low), float(each.high), float(each.step))
        left.append(Step(kind, *numbers, tuple(map(float, each.values)), tuple(each.words)))
    return tuple(left)


def _whole(step: Transform) -> bool:
    return all(float(value).is_integer() for value in (step.low, step.high, step.step))


def _words(step: Step) -> str:
    """Floats by `hex`: exact, and one spelling for one value (0.0 is added to turn -0.0 into 0.0)."""
    numbers = (step.low, step.high, step.step, *step.values)
    words = ("|", *step.words) if step.words else ()
    return " ".join((step.kind, *((value + 0.0).hex() for value in numbers), *words))
