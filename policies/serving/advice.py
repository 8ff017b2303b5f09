"""Answers to four questions about a hub model: does it fit, latency or throughput, what to change, is it spread.

Rule: the smallest change first: a narrower precision, then a smaller batch, then more devices. Pure.

The time of a batch is given, as measured (`skerry_hub_compute_seconds`); nothing is guessed from data sheets.
"""

import msgspec

from policies.serving.computing import Precision
from policies.serving.placement import DeviceMemory, format_size

_SHARE = {Precision.FLOAT32: 1.0, Precision.BFLOAT16: 0.5, Precision.INT8: 0.25}


class Workload(msgspec.Struct, frozen=True):
    """A model and what is asked of it. Bytes in float32; activations at a batch of `batch`; 0 = not known.

    `batch_s`: seconds of a full batch, measured; `rate_per_s`: questions; `deadline_s`: of one answer.
    """

    weight_bytes: int
    activation_bytes: int
    batch: int
    batch_s: float = 0.0
    rate_per_s: float = 0.0
    deadline_s: float = 0.0


class Limit(msgspec.Struct, frozen=True):
    """What keeps a model from what is asked of it; all False = nothing that is known."""

    memory: bool
    latency: bool
    throughput: bool


class Advice(msgspec.Struct, frozen=True):
    """Answers to the four questions, a line each, and the precision and number of devices that they come to."""

    fits: str
    limit: str
    change: str
    distribution: str
    precision: Precision
    devices: int


def find_limit(load: Workload, devices: DeviceMemory) -> Limit:
    """Find what is short with one device in float32."""
    late = 0 < load.deadline_s < load.batch_s
    slow = load.batch_s > 0 and load.batch / load.batch_s < load.rate_per_s
    return Limit(load.weight_bytes + load.activation_bytes > devices.room, late, slow)


def choose_precision(load: Workload, devices: DeviceMemory) -> Precision | None:
    """Choose the widest precision in which one device holds the model; None if none does."""
    return next(
        (each for each, share in _SHARE.items() if load.weight_bytes * share + load.activation_bytes <= devices.room),
        None,
    )


def advise_capacity(load: Workload, devices: DeviceMemory) -> Advice:
    """Answer the four questions for a model on devices of which `devices.count` are there."""
    short, held = find_limit(load, devices), choose_precision(load, devices)
    need = load.weight_bytes + load.activation_bytes
    room = "memory that is not limited" if not devices.memory_bytes else format_size(max(0, int(devices.room)))
    fits = f"{'no' if short.memory else 'yes'}: {format_size(need)} in float32, a device has {room}"
    if short.memory and held is not None:
        fits += f"; in {held} it does"
    precision, count = held or Precision.INT8, 1
    if held is None:
        count = 2
        change = "a smaller max_batch, or devices with more memory: even int8 weights are too much for one"
        spread = "yes, for room: skerry hub plan --tensor 2 shows how it is divided"
    elif short.memory:
        change = f'precision = "{held}", before a second device'
        spread = "no: one device holds it in that precision"
    elif short.latency or short.throughput:
        precision = Precision.BFLOAT16 if held is Precision.FLOAT32 else held
        change, spread = _speed_up(short, load)
        count = 2 if devices.count > 1 else 1
    else:
        change = "none" if load.batch_s else "none for memory; tell --batch-ms, --rate and --deadline-ms for speed"
        spread = "no"
    return Advice(fits, _describe_limit(short, load), change, spread, precision, count)


def _speed_up(short: Limit, load: Workload) -> tuple[str, str]:
    change = 'precision = "bfloat16", then "int8", before a second device'
    if short.latency and load.batch > 1:
        change = f"a smaller max_batch than {load.batch}; then {change}"
    way = "tensor parallel, for the time of one answer" if short.latency else "replicas, for throughput"
    return change, f"only if that is not enough: {way}"


def _describe_limit(short: Limit, load: Workload) -> str:
    if not load.batch_s or not (load.rate_per_s or load.deadline_s):
        return "not known: tell --batch-ms and --rate or --deadline-ms"
    if short.latency:
        return f"latency: a batch takes {load.batch_s * 1000:.0f} ms, an answer may take {load.deadline_s * 1000:.0f}"
    per_s = load.batch / load.batch_s
    if short.throughput:
        return f"throughput: {per_s:.0f} answers a second of the {load.rate_per_s:.0f} asked for"
    return f"neither: {per_s:.0f} answers a second, {load.batch_s * 1000:.0f} ms a batch"
