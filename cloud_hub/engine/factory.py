"""Engine factory: opens a bundle folder as the right kind of engine, and places a large model on several devices.

Rule: one process, unless the bundle's plan, the hub's options or the memory of one device require more.
"""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cloud_hub.engine.base import Engine, EngineError
from cloud_hub.engine.deadline import start_engine
from cloud_hub.engine.devices import count_usable_cards, find_usable_cards
from cloud_hub.engine.text import TextEngine
from cloud_hub.engine.types import EngineOptions, RemoteServer, make_bundle_card, make_placement_request, needs_sharding
from models.bundle.bundle import Bundle, open_edge_part
from models.bundle.hub_part import HubKind, HubPart, WeightFiles, open_hub_part
from models.bundle.manifest import BundleError, Manifest, ParallelPlan
from models.bundle.text_part import read_text_template
from models.graph.format import HubModelDocument, decode_hub_model
from models.sharding.program import ParallelShape
from models.sharding.sizes import ModelSize, fullest_rank, measure_model, measure_ranks
from policies.serving.computing import ComputeOptions, ComputeTarget, DeviceChoice, NoTarget, Precision, choose_targets
from policies.serving.placement import (
    GIB,
    MIB,
    DeviceMemory,
    DoesNotFit,
    MemoryNeed,
    Placement,
    list_node_layouts,
    place_model,
)

if TYPE_CHECKING:
    from cloud_hub.engine.sharded.launcher import RankLauncher


def open_engine(path: Path, means: EngineOptions) -> Engine:
    """Build and start an engine of a version's folder; not warmed up.

    BundleError or EngineError, one line, in bounded time: also where the two parts of the version are not of one.
    """
    edge = open_edge_part(path)
    part, means = open_hub_part(path, edge.manifest), means.for_model(edge.manifest.ref)
    kind, plan, model = part.manifest.kind, part.manifest.parallel, edge.manifest.model
    if kind is HubKind.TEXT:
        text = TextEngine(make_bundle_card(edge, 1), read_text_template(part), means.language_models)
        text.start()
        return text
    if server := means.remote_server(edge.manifest.ref):
        return start_engine(partial(_build_remote_engine, edge, kind, means, server), model, means.ready_s)
    several, note = kind is HubKind.GRAPHS and needs_sharding(plan, means), ""
    if several and not hasattr(os, "pidfd_open"):
        several, note = False, _require_one_process(part, means)
    if several and (sharded := _shard_if_needed(edge, part, means)):
        sharded.start()
        return sharded
    return start_engine(partial(_build_local_engine, edge, kind, means, note), model, means.ready_s)


def _build_local_engine(edge: Bundle, kind: HubKind, means: EngineOptions, note: str) -> Engine:
    """Build the engine of one process. `note`: why the model is not on several devices, "" if nobody asked for them."""
    options = means.compute_options(edge.manifest.ref)
    if kind is HubKind.ONNX:
        from cloud_hub.engine.onnx import OnnxEngine  # noqa: PLC0415 - only for ONNX bundles

        return OnnxEngine(edge, means.max_batch, means.threads, options)
    from cloud_hub.engine.torch import TorchEngine  # noqa: PLC0415 - torch takes seconds: not for `skerry hub invite`

    return TorchEngine(edge, means.max_batch, means.threads, options, note)


def _build_remote_engine(edge: Bundle, kind: HubKind, means: EngineOptions, server: RemoteServer) -> Engine:
    """Build the engine that asks a server; the bundle's own graphs, in float32 on the CPU, tell what it must answer."""
    from cloud_hub.engine.bundle import BundleEngine, GraphRunner  # noqa: PLC0415
    from cloud_hub.engine.remote import RemoteGraphRunner  # noqa: PLC0415

    def make_reference() -> GraphRunner:
        if kind is HubKind.ONNX:
            from cloud_hub.engine.onnx import OnnxGraphRunner  # noqa: PLC0415 - only for ONNX bundles

            return OnnxGraphRunner(edge, means.threads, ComputeOptions(DeviceChoice.CPU))
        from cloud_hub.engine.torch import TorchGraphRunner  # noqa: PLC0415 - torch takes seconds

        return TorchGraphRunner(edge, ComputeTarget(cuda=False, precision=Precision.FLOAT32), means.threads)

    runner = RemoteGraphRunner(edge, server, make_reference)
    return BundleEngine(edge.manifest, make_bundle_card(edge, means.max_batch), runner)


def _require_one_process(part: HubPart, means: EngineOptions) -> str:
    """Check that one process holds the model on a system that has no groups of ranks; returns why it is one process.

    BundleError if `memory_bytes` is too little for it.
    """
    alone = msgspec.structs.replace(means, devices=1, tensor=1, pipeline=1, replicas=1)
    model = part.manifest.model
    decision = plan_placement(read_hub_form(part), part.manifest.parallel, alone, find_devices(alone, "cpu")).decision
    if isinstance(decision, DoesNotFit):
        raise BundleError(f"{model}: {decision.why}; spreading it over several processes needs Linux")
    return f"{model}: one process, for spreading a model over several needs Linux (pidfd_open)"


def _shard_if_needed(edge: Bundle, part: HubPart, means: EngineOptions) -> Engine | None:
    """Build a sharded engine if the model needs several devices, else None."""
    kind = choose_rank_device(means.compute_options(edge.manifest.ref), edge.manifest, elsewhere=means.ray is not None)
    form = read_hub_form(part)
    decision = _require_placement(
        plan_placement(form, part.manifest.parallel, means, find_devices(means, kind)).decision, edge.manifest
    )
    return _build_sharded_engine((edge, part), form, decision, (means, kind)) if decision.devices > 1 else None


def choose_rank_device(options: ComputeOptions, manifest: Manifest, *, elsewhere: bool = False) -> str:
    """Choose "cuda" or "cpu" for the ranks of a model, which compute in float32. EngineError if that is not allowed.

    `elsewhere`: on other machines, where cards are what the options say, whatever this one has.
    """
    if options.precision not in (Precision.AUTO, Precision.FLOAT32):
        raise EngineError(
            f"{manifest.model}: a model on several devices computes in float32, not in {options.precision}"
        )
    if elsewhere and options.device is DeviceChoice.CUDA:
        return "cuda"
    chosen = choose_targets(options, cards=count_usable_cards(), bfloat16_cards=False)
    if isinstance(chosen, NoTarget):
        raise EngineError(f"{manifest.model}: {chosen.why}")
    return "cuda" if chosen.targets[0].cuda else "cpu"


def _require_placement(decision: Placement | DoesNotFit, manifest: Manifest) -> Placement:
    if isinstance(decision, DoesNotFit):
        raise BundleError(f"{manifest.model}: {decision.why}")
    return decision


def _build_sharded_engine(
    parts: tuple[Bundle, HubPart], form: HubModelDocument, decision: Placement, told: tuple[EngineOptions, str]
) -> Engine:
    from cloud_hub.engine.bundle import list_batch_sizes  # noqa: PLC0415
    from cloud_hub.engine.sharded.engine import (  # noqa: PLC0415
        ShardedEngine,
        ShardedGraphRunner,
        SupervisionLimits,
    )
    from cloud_hub.engine.sharded.group import ShardingPlan  # noqa: PLC0415
    from cloud_hub.engine.sharded.protocol import RankConfig  # noqa: PLC0415
    from models.graph.hub_model import check_hub_document  # noqa: PLC0415

    (edge, part), (means, kind), need = parts, told, decision.need
    card = make_bundle_card(edge, means.max_batch)
    check_hub_document(form, edge.manifest, list_batch_sizes(means.max_batch))
    files = None if means.ray else open_verified_weights(part)
    graphs, gangs = part.read_file(part.manifest.graph), []
    for replica in range(decision.replicas):
        first = 0 if means.ray else replica * need.ranks  # a node's cards are counted for each stage by itself
        charter = RankConfig(
            1, 0, tensor=need.tensor, pipeline=need.pipeline, store="", backend="nccl" if kind == "cuda" else "gloo",
            device=f"cuda:{first}" if kind == "cuda" else kind, timeout_s=means.ready_s, threads=means.threads,
        )  # fmt: skip
        plan = ShardingPlan(edge.manifest.model, charter, graphs)
        launcher = _make_launcher(part, means, files)
        gangs.append(ShardedGraphRunner(plan, SupervisionLimits(ready_s=means.ready_s), launcher))
    return ShardedEngine(edge.manifest, card, gangs, files)


def _make_launcher(part: HubPart, means: EngineOptions, files: WeightFiles | None) -> "RankLauncher":
    """Make the launcher of one replica: here from files that are open, or on the machines of a cluster."""
    if means.ray is None:
        from cloud_hub.engine.sharded.launcher import LocalLauncher  # noqa: PLC0415

        return LocalLauncher(tuple(files.descriptors.values()) if files else ())
    from cloud_hub.engine.sharded.cluster.launcher import make_cluster_launcher  # noqa: PLC0415

    return make_cluster_launcher(part, means.ray, means.threads)


def open_verified_weights(part: HubPart) -> WeightFiles:
    """Open the files of weights and hash them, once for all ranks, which read parts of these very files.

    BundleError that names the model if one is not what `part.json` promises.
    """
    files = part.open_weights()
    try:
        files.verify()
    except BundleError as error:
        files.close()
        raise BundleError(f"{part.manifest.model}: {error}") from None
    return files


_CARD_PROCESS = GIB  # memory that CUDA takes on a graphics card per process
_PROCESS = 256 * MIB


class PlacementPlan(NamedTuple):
    """Sizes of a model, the needs of each way to split it, the devices there are, and the placement chosen."""

    sizes: ModelSize
    needs: tuple[MemoryNeed, ...]
    devices: DeviceMemory
    decision: Placement | DoesNotFit


def find_devices(means: EngineOptions, kind: str) -> DeviceMemory:
    """The devices to use: as many as configured, else all graphics cards or all CPU cores. `kind`: "cuda" or "cpu".

    On a cluster as many as configured of each node, else one. EngineError if more graphics cards are configured than
    there are here.
    """
    if means.ray is not None:
        process = _CARD_PROCESS if kind == "cuda" else _PROCESS
        return DeviceMemory((means.devices or 1) * means.ray.nodes, means.memory_bytes, process, means.ray.nodes)
    if kind == "cuda":
        cards = find_usable_cards()
        if means.devices > len(cards):
            raise EngineError(f"[engine] devices = {means.devices}, there are {len(cards)} graphics cards")
        used = cards[: means.devices or len(cards)]
        return DeviceMemory(len(used), means.memory_bytes or min(card.free_bytes for card in used), _CARD_PROCESS)
    return DeviceMemory(means.devices or os.cpu_count() or 1, means.memory_bytes, _PROCESS)


def plan_placement(
    form: HubModelDocument, plan: ParallelPlan, means: EngineOptions, devices: DeviceMemory
) -> PlacementPlan:
    """Measure the model and choose its placement on `devices`. BundleError if its graphs do not fit together."""
    wanted = make_placement_request(plan, means)
    pairs = [pair for pair in list_node_layouts(devices, wanted.pipeline) if wanted.allows_layout(*pair)]
    needs = tuple(_estimate_need(form, tensor, stages, means.max_batch) for tensor, stages in pairs)
    return PlacementPlan(measure_model(form, means.max_batch), needs, devices, place_model(needs, devices, wanted))


def read_hub_form(part: HubPart) -> HubModelDocument:
    """Read the graphs of a hub part. BundleError that names the model if it has none, or they are malformed."""
    part.require_graphs()
    try:
        return decode_hub_model(part.read_file(part.manifest.graph))
    except BundleError as error:
        raise BundleError(f"{part.manifest.model}: {error}") from None


def _estimate_need(form: HubModelDocument, tensor: int, stages: int, batch: int) -> MemoryNeed:
    rank = fullest_rank(measure_ranks(form, ParallelShape(tensor, stages), batch))
    return MemoryNeed(tensor, stages, rank.weight_bytes, rank.activation_bytes)
