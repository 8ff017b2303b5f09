"""`skerry hub plan`: size of a model, its placement on devices, and the answers to four questions.

Takes a bundle, or a checkpoint of Hugging Face (its config.json is enough). Nothing is loaded.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from cloud_hub.cli.checkpoint_shape import PlannedCheckpoint, is_checkpoint, read_planned_checkpoint
from cloud_hub.cli.options import AsJson
from cloud_hub.engine.types import EngineOptions
from models.cli.flags import accepts_flags
from policies.serving.advice import Advice, SpreadOption, Workload, advise_capacity, list_spreads
from policies.serving.capacity import CardMemory, HostMemory
from policies.serving.computing import Precision
from policies.serving.placement import (
    GIB,
    MIB,
    DeviceMemory,
    DoesNotFit,
    MemoryNeed,
    Placement,
    PlacementRequest,
    format_size,
    list_layouts,
    place_model,
)
from policies.serving.transformer import (
    DecoderLoad,
    count_cache_bytes,
    count_line_bytes,
    count_parameters,
    estimate_need,
    list_needs,
)
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import require_path

if TYPE_CHECKING:
    from cloud_hub.engine.factory import PlacementPlan

Folder = Annotated[
    Path,
    typer.Argument(
        callback=require_path, help="Bundle folder, or a Hugging Face folder with config.json.", show_default=False
    ),
]
_CARD_PROCESS, _PROCESS = GIB, 256 * MIB  # as the engines count it: see cloud_hub.engine.factory
_USUAL_NODE = 8  # cards of a machine, where nobody says how many
_MOST_NODES = 8
_CONTEXT = 8192


@dataclass(frozen=True)
class PlanFlags:
    """Flags of `skerry hub plan`. 0 = choose, or what there is."""

    model: Folder
    devices: Annotated[
        int, typer.Option("--devices", min=0, max=64, help="Processes on CPUs; 0 = this machine's cards, else one.")
    ] = 0
    cards: Annotated[
        int, typer.Option("--cards", min=0, max=64, help="Graphics cards of each node, whether they are here or not.")
    ] = 0
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=64, help="Machines with as many devices each.")] = 1
    memory_gib: Annotated[float, typer.Option("--memory-gib", min=0, help="Of each device; 0 = as it is here.")] = 0.0
    tensor: Annotated[int, typer.Option("--tensor", min=0, max=64, help="Ranks that share a stage; 0 = choose.")] = 0
    pipeline: Annotated[int, typer.Option("--pipeline", min=0, max=64, help="Stages; 0 = choose.")] = 0
    replicas: Annotated[int, typer.Option("--replicas", min=0, max=64, help="Of it all; 0 = choose.")] = 0
    batch: Annotated[int, typer.Option("--batch", min=1, max=4096, help="The largest batch; sequences at once.")] = 32
    context: Annotated[
        int, typer.Option("--context", min=0, help=f"Tokens of a sequence of a decoder; 0 = at most {_CONTEXT}.")
    ] = 0
    rate: Annotated[float, typer.Option("--rate", min=0, help="Questions a second that are asked of it.")] = 0.0
    deadline_ms: Annotated[float, typer.Option("--deadline-ms", min=0, help="What one answer may take.")] = 0.0
    batch_ms: Annotated[float, typer.Option("--batch-ms", min=0, help="What a full batch takes, measured.")] = 0.0
    as_json: AsJson = False


class DevicesSeen(NamedTuple):
    """Devices to plan for, and what this machine has."""

    devices: DeviceMemory
    cards: tuple[CardMemory, ...]
    host: HostMemory


@accepts_flags(PlanFlags)
def plan(flags: PlanFlags) -> None:
    """Show the size of a model and its placement on devices. Nothing is loaded; exit code 40 if it does not fit.

    Example: skerry hub plan digits --cards 4 --memory-gib 24
    """
    seen = _look_at_devices(flags)
    facts = _plan_checkpoint(flags, seen) if is_checkpoint(flags.model) else _plan_bundle(flags, seen)
    facts |= {"cards": msgspec.to_builtins(seen.cards), "host": msgspec.to_builtins(seen.host)}
    typer.echo(json.dumps(facts) if flags.as_json else _format_plan(facts))
    if not facts["tensor"]:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _look_at_devices(flags: PlanFlags) -> DevicesSeen:
    """Return the devices that the flags name; what they leave open is as this machine is. ExitError(USAGE)."""
    from cloud_hub.engine.devices import find_cards, read_host_memory  # noqa: PLC0415 - torch only when it runs

    if flags.cards and flags.devices:
        raise ExitError(ExitCode.USAGE, "give --cards or --devices")
    cards, host = find_cards(), read_host_memory()
    if flags.devices or not (flags.cards or cards):
        count = (flags.devices or 1) * flags.nodes
        return DevicesSeen(DeviceMemory(count, int(flags.memory_gib * GIB), _PROCESS, flags.nodes), cards, host)
    each = flags.cards or len(cards)
    if not (flags.memory_gib or cards):
        raise ExitError(ExitCode.USAGE, "no graphics card is here to look at: tell --memory-gib of each")
    here = each <= len(cards) and flags.nodes == 1
    memory = min((card.free_bytes if here else card.total_bytes for card in cards), default=0)
    memory = int(flags.memory_gib * GIB) or memory
    return DevicesSeen(DeviceMemory(each * flags.nodes, memory, _CARD_PROCESS, flags.nodes), cards, host)


def _make_workload(flags: PlanFlags, weight_bytes: int, activation_bytes: int) -> Workload:
    return Workload(
        weight_bytes, activation_bytes, flags.batch, flags.batch_ms / 1000, flags.rate, flags.deadline_ms / 1000
    )


def _advise(load: Workload, seen: DevicesSeen, spreads: tuple[SpreadOption, ...]) -> Advice:
    """Answer the four questions; where the memory of a device is not limited, by what the host has free."""
    memory = seen.devices.memory_bytes or seen.host.free_bytes
    return advise_capacity(load, msgspec.structs.replace(seen.devices, memory_bytes=memory), spreads)


# -- a bundle


def _plan_bundle(flags: PlanFlags, seen: DevicesSeen) -> dict[str, Any]:
    """Plan for the hub model of a bundle, which this project's own engines run."""
    name, sized = _size_bundle(flags, seen)
    load = _make_workload(flags, sized.sizes.weight_bytes, sized.sizes.activation_bytes)
    ranks = sized.decision.need.ranks if isinstance(sized.decision, Placement) else 0
    return {
        "model": name,
        **msgspec.to_builtins(sized.sizes),
        **_describe_decision(seen, sized.needs, sized.decision),
        "advice": msgspec.to_builtins(_advise(load, seen, ())),
        "engine": _name_own_engine(ranks, sized.decision, seen.devices),
    }


def _name_own_engine(ranks: int, decision: Placement | DoesNotFit, devices: DeviceMemory) -> str:
    if ranks < 2:
        return "this hub, in one process"
    nodes = _count_nodes(decision, devices)
    where = "one machine" if nodes == 1 else f"{nodes} machines ([ray], docs/engines.md)"
    return f"this hub, in ranks on {where}, in float32"


def _size_bundle(flags: PlanFlags, seen: DevicesSeen) -> "tuple[str, PlacementPlan]":
    """Return the model's name and its sizes, with the placement that was chosen.

    ExitError(MODEL) if it cannot be sized.
    """
    from cloud_hub.engine.factory import plan_placement, read_hub_form  # noqa: PLC0415 - torch only when it runs
    from models.bundle.bundle import read_manifest  # noqa: PLC0415
    from models.bundle.hub_part import HubKind, open_hub_part  # noqa: PLC0415
    from models.bundle.manifest import BundleError  # noqa: PLC0415

    means = EngineOptions(
        max_batch=flags.batch,
        devices=seen.devices.count,
        memory_bytes=seen.devices.memory_bytes,
        tensor=flags.tensor,
        pipeline=flags.pipeline,
        replicas=flags.replicas,
    )
    try:
        part = open_hub_part(flags.model, read_manifest(flags.model))
        model = part.manifest.model
        if part.manifest.kind is HubKind.ONNX:
            raise ExitError(ExitCode.MODEL, f"{model}: its hub model is ONNX, which runs in one process")
        return model, plan_placement(read_hub_form(part), part.manifest.parallel, means, seen.devices)
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None


# -- a checkpoint


def _plan_checkpoint(flags: PlanFlags, seen: DevicesSeen) -> dict[str, Any]:
    """Plan for a checkpoint from its shape: an encoder that the hub would import, or a decoder of an LLM engine."""
    planned = read_planned_checkpoint(flags.model)
    shape, load = planned.shape, _load_of(flags, planned)
    asked = PlacementRequest(flags.tensor, flags.pipeline, flags.replicas)
    needs = list_needs(shape, load, planned.weight_bytes, _list_usual_layouts(seen.devices, flags))
    decision = place_model(needs, seen.devices, asked)
    narrowest = Precision.INT8 if planned.quantised else planned.stored  # quantised weights stay as they are
    single = estimate_need(shape, load, planned.weight_bytes, (1, 1))
    work = msgspec.structs.replace(
        _make_workload(flags, planned.weight_bytes * 4 // narrowest.weight_bytes, single.activation_bytes),
        cache_bytes=single.cache_bytes,
        stored=narrowest,
        form=planned.quantised,
    )
    counted = count_parameters(shape)
    facts = {
        "model": planned.name,
        "parameters": counted.total,
        "active_parameters": counted.active,
        "stored": planned.quantised or str(planned.stored),
        "weight_bytes": planned.weight_bytes,
        "weights_from": "its configuration" if planned.counted else "its files",
        "activation_bytes": single.activation_bytes,
        **_describe_decision(seen, needs, decision),
        "advice": msgspec.to_builtins(_advise(work, seen, _spread_anywhere(planned, load, seen, work))),
        "engine": _name_engine(planned, decision),
    }
    return facts | (_describe_decoder(planned, load, decision) if shape.decoder else {})


def _load_of(flags: PlanFlags, planned: PlannedCheckpoint) -> DecoderLoad:
    """What is computed at once: whole batches by an encoder, pieces of sequences by a decoder."""
    if not planned.shape.decoder:
        return DecoderLoad(flags.batch, 0, flags.batch * planned.length)
    return DecoderLoad(flags.batch, min(flags.context or _CONTEXT, planned.length))


def _spread_anywhere(
    planned: PlannedCheckpoint, load: DecoderLoad, seen: DevicesSeen, work: Workload
) -> tuple[SpreadOption, ...]:
    """List the fewest devices that would hold it: of those that are named, else of as many as a cluster has."""
    devices = seen.devices
    if devices.count == 1:
        devices = msgspec.structs.replace(devices, count=_USUAL_NODE * _MOST_NODES, nodes=_MOST_NODES)
    if not devices.memory_bytes:
        devices = msgspec.structs.replace(devices, memory_bytes=seen.host.free_bytes)
    needs = list_needs(planned.shape, load, planned.weight_bytes, _list_usual_layouts(devices))
    found = list_spreads(needs, work, devices)
    if found or devices.count >= _USUAL_NODE * _MOST_NODES:
        return found
    more = msgspec.structs.replace(devices, count=_USUAL_NODE * _MOST_NODES, nodes=_MOST_NODES)
    needs = list_needs(planned.shape, load, planned.weight_bytes, _list_usual_layouts(more))
    return list_spreads(needs, work, more)


def _list_usual_layouts(devices: DeviceMemory, flags: PlanFlags | None = None) -> list[tuple[int, int]]:
    """List the layouts that pay for one answer at a time: stages only across nodes that are full, or as asked."""
    node = devices.count // devices.nodes
    asked = flags.pipeline if flags else 0
    return [pair for pair in list_layouts(devices.count) if pair[1] in (1, asked) or pair[0] == node]


def _name_engine(planned: PlannedCheckpoint, decision: Placement | DoesNotFit) -> str:
    if not planned.shape.decoder:
        return "this hub: skerry models import"
    if isinstance(decision, DoesNotFit):
        return "an LLM engine such as vLLM, behind the hub"
    need = decision.need
    return (
        f"an LLM engine behind the hub, as vLLM: --tensor-parallel-size {need.tensor}"
        f" --pipeline-parallel-size {need.pipeline}"
    )


def _describe_decoder(
    planned: PlannedCheckpoint, load: DecoderLoad, decision: Placement | DoesNotFit
) -> dict[str, Any]:
    """Return the facts that only decoders have: cache, and what crosses the line between nodes."""
    number, shape = planned.stored.weight_bytes, planned.shape
    counted = count_parameters(shape)
    tensor = decision.need.tensor if isinstance(decision, Placement) else 2
    handed, added = count_line_bytes(shape, max(2, tensor), number)
    return {
        "cache_bytes": count_cache_bytes(shape, load),
        "context": load.context,
        "sequences": load.sequences,
        "layers": shape.layers,
        "kv_heads": shape.kv_heads,
        "latent_numbers": shape.latent.cache_rank + shape.latent.rotary_width if shape.latent else 0,
        "head_width": shape.head_width,
        "experts": shape.experts,
        "active_experts": shape.active_experts,
        "active_weight_bytes": round(planned.weight_bytes * counted.active / counted.total),
        "line_bytes": {"pipeline": handed, "tensor": added},
    }


# -- output


def _count_nodes(decision: Placement | DoesNotFit, devices: DeviceMemory) -> int:
    """Nodes that one replica takes; 0 if it does not fit."""
    if isinstance(decision, DoesNotFit):
        return 0
    return devices.count_nodes(decision.need.tensor, decision.need.pipeline)


def _describe_decision(
    seen: DevicesSeen, needs: tuple[MemoryNeed, ...], decision: Placement | DoesNotFit
) -> dict[str, Any]:
    """Return the JSON output of a placement: the devices, every way, and the one chosen (zeros if none)."""
    devices = seen.devices
    chosen = None if isinstance(decision, DoesNotFit) else decision
    return {
        "devices": devices.count,
        "nodes": devices.nodes,
        "nodes_taken": _count_nodes(decision, devices),
        "memory_bytes": devices.memory_bytes,
        "process_bytes": devices.process_bytes,
        "ways": [
            {**msgspec.to_builtins(need), "fits": need.bytes <= devices.room}
            for need in needs
            if devices.count_nodes(need.tensor, need.pipeline)
        ],
        "tensor": chosen.need.tensor if chosen else 0,
        "pipeline": chosen.need.pipeline if chosen else 0,
        "replicas": chosen.replicas if chosen else 0,
        "why": decision.why,
    }


def _format_plan(facts: dict[str, Any]) -> str:
    """Format the JSON output for people."""
    stored = f" in {facts['stored']}, from {facts['weights_from']}" if "stored" in facts else ""
    chosen = f"{facts['tensor']} x {facts['pipeline']} x {facts['replicas']}" if facts["tensor"] else "none"
    return "\n".join(
        [
            f"model        {facts['model']}",
            f"parameters   {facts['parameters']:,} ({format_size(facts['weight_bytes'])}{stored})",
            *_format_decoder(facts),
            f"activations  {format_size(facts['activation_bytes'])} at the largest batch",
            f"here         {_format_machine(facts)}",
            "",
            *_format_ways(facts),
            "",
            f"chosen       {chosen} (tensor x pipeline x replicas)",
            f"why          {facts['why']}",
            *_format_nodes(facts),
            f"engine       {facts['engine']}",
            "",
            *(f"{question} {facts['advice'][key]}" for key, question in _QUESTIONS.items()),
        ]
    )


def _format_decoder(facts: dict[str, Any]) -> list[str]:
    if "cache_bytes" not in facts:
        return []
    lines = []
    if facts["experts"]:
        active = f"{facts['active_parameters']:,} ({format_size(facts['active_weight_bytes'])})"
        lines.append(f"a token reads {active}: {facts['active_experts']} of {facts['experts']} experts; all are held")
    kept = f"{facts['kv_heads']} key-value heads of {facts['head_width']}"
    kept = f"a latent vector of {facts['latent_numbers']}" if facts["latent_numbers"] else kept
    lines.append(
        f"cache        {format_size(facts['cache_bytes'])} for {facts['sequences']} sequences of {facts['context']:,}"
        f" tokens ({facts['layers']} layers, {kept})"
    )
    if facts["nodes"] > 1:
        line = facts["line_bytes"]
        lines.append(
            f"between nodes  {line['pipeline'] / 1024:.0f} KiB a token by pipeline, {line['tensor'] / 1024:,.0f} KiB if"
            " tensor parallel crossed the line"
        )
    return lines


def _format_nodes(facts: dict[str, Any]) -> list[str]:
    """Say how many of several machines a replica takes."""
    taken = facts["nodes_taken"]
    if facts["nodes"] == 1 or not taken:
        return []
    needed = "one machine is enough" if taken == 1 else f"{taken} machines, a stage or more on each"
    return [f"machines     {needed}, of {facts['nodes']}"]


def _format_machine(facts: dict[str, Any]) -> str:
    """Say what this machine has."""
    host = f"{format_size(facts['host']['free_bytes'])} of memory free"
    names = [f"{card['name']} ({format_size(card['free_bytes'])} free)" for card in facts["cards"]]
    return f"{', '.join(names) or 'no graphics card'}; {host}"


def _format_ways(facts: dict[str, Any]) -> list[str]:
    """The table of layouts; of many, those of 1, 2, 4, 8, ... devices."""
    rows = [way for way in facts["ways"] if _is_usual(way, facts["ways"])]
    cached = any(way["cache_bytes"] for way in rows)
    lines = [f"tensor x pipeline   weights a device   activations {'      cache ' if cached else ''}  fits"]
    for way in rows:
        sizes = f"{format_size(way['weight_bytes']):>16} {format_size(way['activation_bytes']):>13}"
        sizes += f" {format_size(way['cache_bytes']):>11}" if cached else ""
        lines.append(f"{way['tensor']:>6} x {way['pipeline']:<8} {sizes}   {'yes' if way['fits'] else 'no'}")
    return lines


_FEW = 8


def _is_usual(way: dict[str, Any], ways: list[dict[str, Any]]) -> bool:
    return len(ways) <= _FEW or all(count & (count - 1) == 0 for count in (way["tensor"], way["pipeline"]))


_QUESTIONS = {
    "fits": "does it fit?          ",
    "limit": "latency or throughput?",
    "change": "smallest change       ",
    "distribution": "spread it?            ",
}
