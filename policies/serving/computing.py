"""What a hub model may compute on and in which numbers: the values of `[engine]`, and the choice between them. Pure.

Rule: the hub's own hardware and options decide, never the target that a device's half was made for. What was asked for
and cannot be had is an error, or a fallback that is named, where the options allow one.
"""

from enum import StrEnum

import msgspec


class DeviceChoice(StrEnum):
    """Where a hub model computes. `auto`: on a graphics card if there is one."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Precision(StrEnum):
    """Numbers that a hub model computes in.

    `float32`: as its weights are stored. `bfloat16`, `float16`: matrix products and convolutions, with those weights.
    `int8`: weights of linear layers, one scale for each output channel. `auto`: see docs/engines.md.
    """

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight; `auto` counts as float32."""
        return {Precision.INT8: 1, Precision.BFLOAT16: 2, Precision.FLOAT16: 2}.get(self, 4)


class ComputeOptions(msgspec.Struct, frozen=True):
    """Options of one model: device, precision, and whether it may run otherwise where these cannot be had.

    `compile`: graphs are compiled for the processor while they serve.
    """

    device: DeviceChoice = DeviceChoice.AUTO
    precision: Precision = Precision.FLOAT32
    allow_fallback: bool = False
    compile: bool = False


class ComputeOverride(msgspec.Struct, frozen=True):
    """Options that one model has for itself; None = as all models."""

    device: DeviceChoice | None = None
    precision: Precision | None = None
    allow_fallback: bool | None = None
    compile: bool | None = None

    def apply(self, options: ComputeOptions) -> ComputeOptions:
        """Return `options` with what is set here in their place."""
        return msgspec.structs.replace(
            options, **{name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        )


class ComputeTarget(msgspec.Struct, frozen=True):
    """A device and a precision to try. `precision` AUTO: float32 on a CPU, unless bfloat16 is measured to be faster."""

    cuda: bool
    precision: Precision

    def __str__(self) -> str:
        return f"{self.precision} on {'a graphics card' if self.cuda else 'the CPU'}"


class TargetChoice(msgspec.Struct, frozen=True):
    """What to try, best first. `fallback`: why even the first is not what was asked for, "" if it is."""

    targets: tuple[ComputeTarget, ...]
    fallback: str = ""


class NoTarget(msgspec.Struct, frozen=True):
    """Nothing that the options allow is there. `why`: one line, with what to change."""

    why: str


_NO_CARD = "no graphics card that can be used is there"


def choose_targets(options: ComputeOptions, *, cards: int, bfloat16_cards: bool = True) -> TargetChoice | NoTarget:
    """Choose what to try. `cards`: graphics cards there are; `bfloat16_cards`: whether they compute in it themselves.

    More than one target only where the options allow a fallback, or leave the precision to the hub (`auto`): a card's
    bfloat16 that breaks the golden set gives way to its float32.
    """
    asked = options.precision
    if options.device is DeviceChoice.CPU or not cards:
        if options.device is DeviceChoice.CUDA and not options.allow_fallback:
            return NoTarget(f'{_NO_CARD}: set device = "auto" or "cpu", or allow_fallback = true')
        return TargetChoice(_list_cpu(options), _NO_CARD if options.device is DeviceChoice.CUDA else "")
    first = Precision.BFLOAT16 if bfloat16_cards else Precision.FLOAT32
    found = [ComputeTarget(cuda=True, precision=first if asked is Precision.AUTO else asked)]
    if options.allow_fallback or asked is Precision.AUTO:
        found.append(ComputeTarget(cuda=True, precision=Precision.FLOAT32))
    if options.allow_fallback:
        found += _list_cpu(options)
    return TargetChoice(tuple(dict.fromkeys(found)))


def _list_cpu(options: ComputeOptions) -> tuple[ComputeTarget, ...]:
    found = [ComputeTarget(cuda=False, precision=options.precision)]
    if options.allow_fallback:
        found.append(ComputeTarget(cuda=False, precision=Precision.FLOAT32))
    return tuple(dict.fromkeys(found))
