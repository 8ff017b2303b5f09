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
    """Memory that the fullest rank needs if a model is spread over `tensor` x `pipeline` ranks.

    `cache_bytes`: keys and values of a decoder's sequences.
    """

    tensor: int
    pipeline: int
    weight_bytes: int
    activation_bytes: int
    cache_bytes: int = 0

    @property
    def ranks(self) -> int:
        """Number of ranks of one replica."""
        return self.tensor * self.pipeline

    @property
    def bytes(self) -> int:
        """Weights, activations and cache of the fullest rank."""
        return self.weight_bytes + self.activation_bytes + self.cache_bytes


class DeviceMemory(msgspec.Struct, frozen=True):
    """Number of devices and the memory of each.

    `memory_bytes` 0 = not limited. `process_bytes`: what a rank takes before it holds anything. `nodes`: machines that
    they stand in, as many in each; between two of them lies a slow line.
    """

    count: int = 1
    memory_bytes: int = 0
    process_bytes: int = 256 * MIB
    nodes: int = 1

    @property
    def room(self) -> float:
        """Bytes that a device has for a model; inf where memory is not limited."""
        return self.memory_bytes - self.process_bytes if self.memory_bytes else float("inf")

    def count_nodes(self, tensor: int, pipeline: int) -> int:
        """Count the nodes that one replica of a layout takes; 0 if it does not go.

        A tensor division stays inside a node, for it talks in every layer; stages may lie in different ones.
        """
        stages = self.count // self.nodes // tensor
        taken = -(-pipeline // stages) if stages else 0
        return taken if taken <= self.nodes else 0

    def count_replicas(self, tensor: int, pipeline: int) -> int:
        """Count the replicas of a layout that go side by side."""
        taken = self.count_nodes(tensor, pipeline)
        if taken != 1:
            return self.nodes // taken if taken else 0
        return self.count // self.nodes // (tensor * pipeline) * self.nodes


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


def list_node_layouts(devices: DeviceMemory, pipeline: int = 0) -> tuple[tuple[int, int], ...]:
    """List the layouts that pay: all inside one node; across nodes those that fill each, or of `pipeline` stages."""
    node = devices.count // devices.nodes
    return tuple(
        (tensor, stages)
        for tensor, stages in list_layouts(devices.count)
        if tensor * stages <= node or ((tensor == node or stages == pipeline) and devices.count_nodes(tensor, stages))
    )


def place_model(needs: Sequence[MemoryNeed], devices: DeviceMemory, asked: PlacementRequest) -> Placement | DoesNotFit:
    """Choose a layout for a model. `needs`: memory of every layout that the model can have; [] = none."""
    ranks = max(1, asked.tensor) * max(1, asked.pipeline) * max(1, asked.replicas)
    if ranks > devices.count:
        return DoesNotFit(f"the plan takes {ranks} devices ({_describe_request(asked)}), there are {devices.count}")
    if 0 < asked.tensor > devices.count // devices.nodes:
        return DoesNotFit(
            f"tensor {asked.tensor} does not go into a node of {devices.count // devices.nodes} devices: it talks in"
            " every layer, so it stays inside one; use pipeline across nodes"
        )
    allowed = [
        need
        for need in needs
        if asked.allows_layout(need.tensor, need.pipeline) and devices.count_nodes(need.tensor, need.pipeline)
    ]
    if not allowed:
        return DoesNotFit(f"nothing on {devices.count} devices is {_describe_request(asked)}")
    fitting = [need for need in allowed if need.bytes <= devices.room]
    if not fitting:
        return _explain_misfit(allowed, devices)
    chosen = min(fitting, key=lambda need: (need.ranks, devices.count_nodes(need.tensor, need.pipeline), need.pipeline))
    most = devices.count_replicas(chosen.tensor, chosen.pipeline)
    replicas = asked.replicas or most
    if replicas > most:
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
    taken = devices.count_nodes(chosen.tensor, chosen.pipeline)
    said += f"; stages across {taken} nodes, tensor inside each" if taken > 1 else ""
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
