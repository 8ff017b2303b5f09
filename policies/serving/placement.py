"""Placement of a model on devices: tensor, pipeline or data parallel, decided by sizes alone. Pure.

Rule: the fewest devices that hold it; among equals tensor before pipeline, for then all work on every answer; what is
left over computes whole answers side by side (replicas). Nothing is guessed to fit: it fits by its sizes, or the
result says by how much it does not. Sizes are in bytes.
"""

from collections.abc import Sequence

import msgspec

MIB = 1 << 20
GIB = 1 << 30


class MemoryNeed(msgspec.Struct, frozen=True):
    """Memory that the fullest rank needs if a model is spread over `tensor` x `pipeline` ranks."""

    tensor: int
    pipeline: int
    weight_bytes: int
    activation_bytes: int

    @property
    def ranks(self) -> int:
        """Number of ranks of one replica."""
        return self.tensor * self.pipeline

    @property
    def bytes(self) -> int:
        """Weights and activations of the fullest rank."""
        return self.weight_bytes + self.activation_bytes


class DeviceMemory(msgspec.Struct, frozen=True):
    """Number of devices and the memory of each.

    `memory_bytes` 0 = not limited. `process_bytes`: what a rank takes before it holds anything.
    """

    count: int = 1
    memory_bytes: int = 0
    process_bytes: int = 256 * MIB

    @property
    def room(self) -> float:
        """Bytes that a device has for a model; inf where memory is not limited."""
        return self.memory_bytes - self.process_bytes if self.memory_bytes else float("inf")


class PlacementRequest(msgspec.Struct, frozen=True):
    """Layout that a person asks for; 0 = any."""

    tensor: int = 0
    pipeline: int = 0
    replicas: int = 0

    def allows_layout(self, tensor: int, pipeline: int) -> bool:
        """Whether this layout is what was asked for."""
        return self.tensor in (0, tensor) and self.pipeline in (0, pipeline)


class Placement(msgspec.Struct, frozen=True):
    """Chosen layout and number of replicas. `why`: one line for people."""

    need: MemoryNeed
    replicas: int
    why: str

    @property
    def devices(self) -> int:
        """Number of devices used."""
        return self.need.ranks * self.replicas


class DoesNotFit(msgspec.Struct, frozen=True):
    """No layout fits. `why`: one line, with what to change."""

    why: str


def list_layouts(devices: int) -> tuple[tuple[int, int], ...]:
    """Every (tensor, pipeline) layout of at most so many ranks, the fewest first, tensor before pipeline."""
    pairs = [(tensor, stages) for tensor in range(1, devices + 1) for stages in range(1, devices // tensor + 1)]
    return tuple(sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair[1])))


def place_model(needs: Sequence[MemoryNeed], devices: DeviceMemory, asked: PlacementRequest) -> Placement | DoesNotFit:
    """Choose a layout for a model. `needs`: memory of every layout that the model can have; [] = none."""
    ranks = max(1, asked.tensor) * max(1, asked.pipeline) * max(1, asked.replicas)
    if ranks > devices.count:
        return DoesNotFit(f"the plan takes {ranks} devices ({_describe_request(asked)}), there are {devices.count}")
    allowed = [
        need for need in needs if asked.allows_layout(need.tensor, need.pipeline) and need.ranks <= devices.count
    ]
    if not allowed:
        return DoesNotFit(f"nothing on {devices.count} devices is {_describe_request(asked)}")
    fitting = [need for need in allowed if need.bytes <= devices.room]
    if not fitting:
        return _explain_misfit(allowed, devices)
    chosen = min(fitting, key=lambda need: (need.ranks, need.pipeline))
    replicas = asked.replicas or devices.count // chosen.ranks
    if replicas * chosen.ranks > devices.count:
        return DoesNotFit(f"the plan takes {replicas * chosen.ranks} devices, there are {devices.count}")
    return Placement(chosen, replicas, _explain_choice(chosen, replicas, devices, asked))


def _explain_choice(chosen: MemoryNeed, replicas: int, devices: DeviceMemory, asked: PlacementRequest) -> str:
    room = "" if not devices.memory_bytes else f" of {format_size(int(devices.room))}"
    held = f"{format_size(chosen.bytes)}{room} a device"
    if asked.tensor or asked.pipeline:
        said = f"as planned, {held}"
    elif chosen.ranks == 1:
        said = f"one device is enough, {held}"
    else:
        kind = "tensor" if chosen.pipeline == 1 else "pipeline" if chosen.tensor == 1 else "tensor and pipeline"
        said = f"{kind} parallel over {chosen.ranks} devices is the least that fits, {held}"
    return f"{said}; {replicas} replicas side by side" if replicas > 1 else said


def _explain_misfit(allowed: Sequence[MemoryNeed], devices: DeviceMemory) -> DoesNotFit:
    least = min(allowed, key=lambda need: need.bytes)
    lacks = (
        f"{format_size(least.bytes + devices.process_bytes)} a device at the least ({least.tensor} x {least.pipeline})"
    )
    return DoesNotFit(
        f"it does not fit: it takes {lacks}, there are {devices.count} of {format_size(devices.memory_bytes)}"
    )


def _describe_request(asked: PlacementRequest) -> str:
    parts = {"tensor": asked.tensor, "pipeline": asked.pipeline, "replicas": asked.replicas}
    return ", ".join(f"{name} {count}" for name, count in parts.items() if count) or "possible"


def format_size(count: int) -> str:
    """Format a number of bytes for people: MiB below a GiB, else GiB."""
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"
