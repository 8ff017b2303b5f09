"""Answers to four questions about a hub model: does it fit, latency or throughput, what to change, is it spread.

Rule: the smallest change first: a narrower precision, then a smaller batch, then more devices; the fewest of those,
tensor parallel inside a node and stages across nodes (see `placement`). Pure.

The time of a batch is given, as measured (`skerry_hub_compute_seconds`); nothing is guessed from data sheets.
"""

from collections.abc import Sequence

import msgspec

from policies.serving.computing import Precision
from policies.serving.placement import (
    DeviceMemory,
    MemoryNeed,
    Placement,
    PlacementRequest,
    format_size,
    place_model,
)

_SHARE = {Precision.FLOAT32: 1.0, Precision.BFLOAT16: 0.5, Precision.FLOAT16: 0.5, Precision.INT8: 0.25}


class Workload(msgspec.Struct, frozen=True):
    """A model and what is asked of it. Weights as float32; activations at a batch of `batch`; 0 = not known.

    `batch_s`: seconds of a full batch, measured; `rate_per_s`: questions; `deadline_s`: of one answer. `cache_bytes`:
    keys and values of a decoder, which no precision of weights makes less; `stored`: the widest precision there is.
    `form`: how the weights are stored, where that is no precision of ours, such as "awq, 4 bits".
    """

    weight_bytes: int
    activation_bytes: int
    batch: int
    batch_s: float = 0.0
    rate_per_s: float = 0.0
    deadline_s: float = 0.0
    cache_bytes: int = 0
    stored: Precision = Precision.FLOAT32
    form: str = ""

    def count_bytes(self, precision: Precision) -> float:
        """Bytes that one device needs for all of it, with weights in a precision."""
        return self.weight_bytes * _SHARE[precision] + self.activation_bytes + self.cache_bytes

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Precisions of its weights, the widest first: none is wider than they are stored."""
        narrower = [each for each in (Precision.BFLOAT16, Precision.INT8) if _SHARE[each] < _SHARE[self.stored]]
        return (self.stored, *narrower)


class SpreadOption(msgspec.Struct, frozen=True):
    """The fewest devices that hold a model in one precision. `nodes`: that they stand in."""

    precision: Precision
    tensor: int
    pipeline: int
    nodes: int = 1

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        across = f", stages across {self.nodes} nodes" if self.nodes > 1 else ""
        plural = "devices" if self.devices > 1 else "device"
        return f"{self.precision} on {self.devices} {plural} (tensor {self.tensor}, pipeline {self.pipeline}{across})"


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
    """Find what is short with one device and weights as they are stored."""
    late = 0 < load.deadline_s < load.batch_s
    slow = load.batch_s > 0 and load.batch / load.batch_s < load.rate_per_s
    return Limit(load.count_bytes(load.stored) > devices.room, late, slow)


def choose_precision(load: Workload, devices: DeviceMemory) -> Precision | None:
    """Choose the widest precision in which one device holds the model; None if none does."""
    return next((each for each in load.precisions if load.count_bytes(each) <= devices.room), None)


def list_spreads(needs: Sequence[MemoryNeed], load: Workload, devices: DeviceMemory) -> tuple[SpreadOption, ...]:
    """List the fewest devices that hold the model, in each precision in which some do.

    `needs`: memory of every layout, with weights as they are stored.
    """
    found = []
    for precision in load.precisions:
        share = _SHARE[precision] / _SHARE[load.stored]
        scaled = [msgspec.structs.replace(need, weight_bytes=round(need.weight_bytes * share)) for need in needs]
        placed = place_model(scaled, devices, PlacementRequest())
        if isinstance(placed, Placement):
            need = placed.need
            nodes = devices.count_nodes(need.tensor, need.pipeline)
            found.append(SpreadOption(precision, need.tensor, need.pipeline, nodes))
    return tuple(found)


def advise_capacity(load: Workload, devices: DeviceMemory, spreads: Sequence[SpreadOption] = ()) -> Advice:
    """Answer the four questions for a model on devices of which `devices.count` are there.

    `spreads`: what `list_spreads` found, on as many devices as there could be.
    """
    short, held = find_limit(load, devices), choose_precision(load, devices)
    room = "memory that is not limited" if not devices.memory_bytes else format_size(max(0, int(devices.room)))
    need = format_size(int(load.count_bytes(load.stored)))
    fits = f"{'no' if short.memory else 'yes'}: {need} in {load.form or load.stored}, a device has {room}"
    if short.memory and held is not None:
        fits += f"; in {held} it does"
    precision, count = held or load.precisions[-1], 1
    if held is None:
        least = min(spreads, key=lambda option: option.devices, default=None)
        precision, count = (least.precision, least.devices) if least else (precision, 2)
        change, spread = _make_room(spreads, least, load, devices)
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


def _make_room(
    spreads: Sequence[SpreadOption], least: SpreadOption | None, load: Workload, devices: DeviceMemory
) -> tuple[str, str]:
    """What to change, and how it is spread, where no device holds the model in any precision."""
    if least is None:
        weights, narrow = load.weight_bytes * _SHARE[load.precisions[-1]], load.form or load.precisions[-1]
        divided = "yes, for room: skerry hub plan --devices 2 --tensor 2 shows how it is divided"
        if weights > devices.room * devices.count:
            there = f"{devices.count} devices have" if devices.count > 1 else "a device has"
            change = (
                f"more devices, or larger ones: the weights alone are {format_size(int(weights))} in {narrow}, and"
                f" {there} {format_size(int(devices.room * devices.count))}"
            )
        else:
            change = f"a smaller max_batch, or devices with more memory: at this batch {narrow} weights are too much"
        return change, divided
    return f"{least}: the fewest that hold it", f"yes, for room: {'; or '.join(map(str, spreads))}"


def _speed_up(short: Limit, load: Workload) -> tuple[str, str]:
    narrower = ", then ".join(f'"{each}"' for each in load.precisions[1:])
    change = f"precision = {narrower}, before a second device" if narrower else "a second device"
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
