"""`skerry hub plan`: how large a bundle's hub model is, and over how many devices it would be spread, and why."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cloud_hub.cli.options import AsJson
from cloud_hub.engine.merging_types_means import Means
from models.cli.flags import takes
from policies.serving.placement import GIB, MIB, Need, NoPlace
from wire.process.exit_codes import Exit, ExitError

if TYPE_CHECKING:
    from cloud_hub.engine.merging_factory_sizing import Sized

Folder = Annotated[Path, typer.Argument(help="A bundle: the folder with manifest.json.", show_default=False)]


@dataclass(frozen=True)
class PlanFlags:
    bundle: Folder
    devices: Annotated[int, typer.Option("--devices", min=1, max=64, help="Graphics cards, or processes on CPUs.")] = 1
    memory_gib: Annotated[float, typer.Option("--memory-gib", min=0, help="Of each device; 0 = no limit.")] = 0.0
    tensor: Annotated[int, typer.Option("--tensor", min=0, max=64, help="Ranks that share a stage; 0 = choose.")] = 0
    pipeline: Annotated[int, typer.Option("--pipeline", min=0, max=64, help="Stages; 0 = choose.")] = 0
    replicas: Annotated[int, typer.Option("--replicas", min=0, max=64, help="Of it all; 0 = choose.")] = 0
    batch: Annotated[int, typer.Option("--batch", min=1, max=4096, help="The largest batch.")] = 32
    as_json: AsJson = False


@takes(PlanFlags)
def plan(flags: PlanFlags) -> None:
    """Size a hub model, and say how the devices would share it. Nothing is loaded; exit code 40 if it does not fit."""
    name, sized = _sized(flags)
    facts = _facts(name, sized)
    typer.echo(json.dumps(facts) if flags.as_json else _words(facts))
    if isinstance(sized.decision, NoPlace):
        raise typer.Exit(Exit.CHECK_FAILED)


def _sized(flags: PlanFlags) -> "tuple[str, Sized]":
    from cloud_hub.engine.merging_factory_sizing import devices_of, form_of, size_up  # noqa: PLC0415 - torch only when it runs
    from models.bundle.bundle import open_apart  # noqa: PLC0415
    from models.bundle.manifest import BundleError  # noqa: PLC0415

    means = Means(
        max_batch=flags.batch,
        devices=flags.devices,
        memory_bytes=int(flags.memory_gib * GIB),
        tensor=flags.tensor,
        pipeline=flags.pipeline,
        replicas=flags.replicas,
    )
    try:
        bundle = open_apart(flags.bundle)
        bundle.close()
        manifest = bundle.manifest
        if manifest.hub.whole:
            raise ExitError(Exit.MODEL, f"{manifest.model}: its hub model is ONNX, which runs in one process")
        form = form_of(bundle.read(manifest.hub.graph), manifest)
        return manifest.model, size_up(form, manifest, means, devices_of(means, "cpu"))
    except BundleError as error:
        raise ExitError(Exit.MODEL, str(error)) from None


def _facts(name: str, sized: "Sized") -> dict[str, Any]:
    decision = sized.decision
    chosen = None if isinstance(decision, NoPlace) else decision
    return {
        "model": name,
        **msgspec.to_builtins(sized.sizes),
        "devices": sized.devices.count,
        "memory_bytes": sized.devices.memory_bytes,
        "process_bytes": sized.devices.process_bytes,
        "ways": [{**msgspec.to_builtins(need), "fits": need.bytes <= sized.devices.room} for need in sized.needs],
        "tensor": chosen.need.tensor if chosen else 0,
        "pipeline": chosen.need.pipeline if chosen else 0,
        "replicas": chosen.replicas if chosen else 0,
        "why": decision.why,
    }


def _words(facts: dict[str, Any]) -> str:
    lines = [
        f"model        {facts['model']}",
        f"parameters   {facts['parameters']:,} ({facts['weight_bytes'] / MIB:.1f} MiB)",
        f"activations  {facts['activation_bytes'] / MIB:.1f} MiB at the largest batch",
        "",
        "tensor x pipeline   weights a device   activations   fits",
    ]
    for way in facts["ways"]:
        need = Need(way["tensor"], way["pipeline"], way["weight_bytes"], way["activation_bytes"])
        sizes = f"{need.weight_bytes / MIB:>12.1f} MiB {need.activation_bytes / MIB:>9.1f} MiB"
        lines.append(f"{need.tensor:>6} x {need.pipeline:<8} {sizes}   {'yes' if way['fits'] else 'no'}")
    chosen = f"{facts['tensor']} x {facts['pipeline']} x {facts['replicas']}" if facts["tensor"] else "none"
    return "\n".join(
        [*lines, "", f"chosen       {chosen} (tensor x pipeline x replicas)", f"why          {facts['why']}"]
    )
