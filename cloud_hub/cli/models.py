"""`skerry models permit` and `retire`, and `skerry hub plan`: downgrade permits, end of a version, engine placement.

Rule: no hub signs a permit. The command writes a request; what is signed with the targets keys and installed here is
what devices obey, and nothing else of it is.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cloud_hub.cli.hub_operations import HubOperations
from cloud_hub.cli.options import AsJson, ConfigFile, State, load_config, parse_span, print_record
from cloud_hub.cli.publish import Out, map_publish_errors, open_repository, print_published, utc_moment
from cloud_hub.engine.types import EngineOptions
from cloud_hub.registry.device_states import GONE
from cloud_hub.repository.publish import publish_permit
from models.cli.flags import accepts_flags
from models.signing.roles import MAX_PERMIT_DEVICES, Permit
from policies.serving.advice import Advice, Workload, advise_capacity
from policies.serving.placement import GIB, MIB, DoesNotFit, MemoryNeed
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import TYPER_SETTINGS

if TYPE_CHECKING:
    from cloud_hub.engine.factory import PlacementPlan


app = typer.Typer(**TYPER_SETTINGS)


@app.command()
def permit(
    family: Annotated[str, typer.Argument(help="The model's name: digits.", show_default=False)],
    *,
    to: Annotated[int, typer.Option("--to", help="The version they may go down to.", min=1, show_default=False)],
    below: Annotated[
        int, typer.Option("--from-below", help="Only devices whose version is below this.", min=2, show_default=False)
    ],
    lasts: Annotated[str, typer.Option("--for", help="How long it may be used: 12h, 7d.")] = "7d",
    why: Annotated[str, typer.Option("--why", help="One line for whoever signs it.")] = "",
    device: Annotated[
        list[str] | None, typer.Option("--device", help="Only these. Default: all devices that this hub has now.")
    ] = None,
    all_devices: Annotated[
        bool, typer.Option("--all-devices", help="Name nobody: it holds for devices that enrol later, too.")
    ] = False,
    request: Out = None,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Request a downgrade permit, to be signed offline by the holders of the targets keys.

    Example: skerry models permit digits --to 6 --from-below 9 --for 7d
    """
    if device and all_devices:
        raise ExitError(ExitCode.USAGE, "give --device or --all-devices")
    named = () if all_devices else _name_devices(HubOperations(load_config(config, state)), device or ())
    moment = utc_moment()
    ends_ms = int((moment + timedelta(seconds=parse_span(lasts, "--for"))).timestamp() * 1000)
    asked = Permit(family, below, to, ends_ms, why, named)
    print_published(
        map_publish_errors(lambda: publish_permit(open_repository(config), asked, moment)), request, as_json=as_json
    )


def _name_devices(hub: HubOperations, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of these devices, or of all that are not gone for good. ExitError if one is unknown, or none."""
    known = [row["device"] for row in hub.list_devices() if row["state"] not in GONE]
    for each in wanted:
        if each not in known:
            raise ExitError(ExitCode.NOT_FOUND, f"no device '{each}': `skerry devices list` shows all")
    named = tuple(sorted(set(wanted or known)))
    if not 0 < len(named) <= MAX_PERMIT_DEVICES:
        why = f"a permit names 1 to {MAX_PERMIT_DEVICES} devices, these are {len(named)}: --device ID, or --all-devices"
        raise ExitError(ExitCode.USAGE, why)
    return named


def retire(
    model: Annotated[str, typer.Argument(help="MODEL@VERSION, as in digits@7.", show_default=False)],
    *,
    force: Annotated[bool, typer.Option("--force", help="Even though devices still use it.")] = False,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Retire a version. Refused, naming the devices, while some still use it: they would get `model_gone`.

    Example: skerry models retire digits@6
    """
    found = HubOperations(load_config(config, state)).retire_model(model, force=force)
    spoke = [row["device"] for row in found["spoke"]]
    print_record(found if as_json else {"retired": found["retired"], "spoke": spoke}, as_json=as_json)


Folder = Annotated[Path, typer.Argument(help="A bundle: the folder with manifest.json.", show_default=False)]


@dataclass(frozen=True)
class PlanFlags:
    """Arguments and options of `skerry hub plan`: a bundle folder, and the devices that it should be placed on."""

    bundle: Folder
    devices: Annotated[int, typer.Option("--devices", min=1, max=64, help="Graphics cards, or processes on CPUs.")] = 1
    memory_gib: Annotated[float, typer.Option("--memory-gib", min=0, help="Of each device; 0 = no limit.")] = 0.0
    tensor: Annotated[int, typer.Option("--tensor", min=0, max=64, help="Ranks that share a stage; 0 = choose.")] = 0
    pipeline: Annotated[int, typer.Option("--pipeline", min=0, max=64, help="Stages; 0 = choose.")] = 0
    replicas: Annotated[int, typer.Option("--replicas", min=0, max=64, help="Of it all; 0 = choose.")] = 0
    batch: Annotated[int, typer.Option("--batch", min=1, max=4096, help="The largest batch.")] = 32
    cards: Annotated[bool, typer.Option("--cards", help="On this machine's graphics cards, as free as they are.")] = (
        False
    )
    rate: Annotated[float, typer.Option("--rate", min=0, help="Questions a second that are asked of it.")] = 0.0
    deadline_ms: Annotated[float, typer.Option("--deadline-ms", min=0, help="What one answer may take.")] = 0.0
    batch_ms: Annotated[float, typer.Option("--batch-ms", min=0, help="What a full batch takes, measured.")] = 0.0
    as_json: AsJson = False


@accepts_flags(PlanFlags)
def plan(flags: PlanFlags) -> None:
    """Show the size of a hub model and its placement on devices. Nothing is loaded; exit code 40 if it does not fit.

    Example: skerry hub plan digits --devices 4
    """
    flags = _use_cards(flags) if flags.cards else flags
    name, sized = _size_bundle(flags)
    facts = {**_plan_fields(name, sized), "advice": msgspec.to_builtins(_advise(flags, sized))}
    typer.echo(json.dumps(facts) if flags.as_json else _format_plan(facts))
    if isinstance(sized.decision, DoesNotFit):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _use_cards(flags: PlanFlags) -> PlanFlags:
    """Take the free memory of this machine's cards. ExitError(CHECK_FAILED) if the plan takes more than there are."""
    from cloud_hub.engine.devices import find_cards  # noqa: PLC0415 - torch only when it runs

    cards = find_cards()
    if flags.devices > len(cards):
        raise ExitError(ExitCode.CHECK_FAILED, f"the plan takes {flags.devices} cards, there are {len(cards)}")
    least = min(card.free_bytes for card in cards[: flags.devices])
    return replace(flags, memory_gib=flags.memory_gib or least / GIB)


def _advise(flags: PlanFlags, sized: "PlacementPlan") -> Advice:
    """Answer the four questions for these flags; without --memory-gib, by what the host has free."""
    from cloud_hub.engine.devices import read_host_memory  # noqa: PLC0415

    sizes = sized.sizes
    load = Workload(
        sizes.weight_bytes, sizes.activation_bytes, flags.batch, flags.batch_ms / 1000, flags.rate,
        flags.deadline_ms / 1000,
    )  # fmt: skip
    memory = sized.devices.memory_bytes or read_host_memory().free_bytes
    return advise_capacity(load, msgspec.structs.replace(sized.devices, memory_bytes=memory))


def _size_bundle(flags: PlanFlags) -> "tuple[str, PlacementPlan]":
    """Return the model's name and its sizes, with the placement that was chosen.

    ExitError(MODEL) if it cannot be sized.
    """
    from cloud_hub.engine.factory import find_devices, plan_placement, read_hub_form  # noqa: PLC0415 - torch only when it runs
    from models.bundle.bundle import open_bundle_streamed  # noqa: PLC0415
    from models.bundle.manifest import BundleError  # noqa: PLC0415

    means = EngineOptions(
        max_batch=flags.batch,
        devices=flags.devices,
        memory_bytes=int(flags.memory_gib * GIB),
        tensor=flags.tensor,
        pipeline=flags.pipeline,
        replicas=flags.replicas,
    )
    try:
        bundle = open_bundle_streamed(flags.bundle)
        bundle.close()
        manifest = bundle.manifest
        if manifest.hub.whole:
            raise ExitError(ExitCode.MODEL, f"{manifest.model}: its hub model is ONNX, which runs in one process")
        form = read_hub_form(bundle.read_file(manifest.hub.graph), manifest)
        return manifest.model, plan_placement(form, manifest, means, find_devices(means, "cpu"))
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None


def _plan_fields(name: str, sized: "PlacementPlan") -> dict[str, Any]:
    """Return the JSON output: sizes, every way to place the model, and the one chosen."""
    decision = sized.decision
    chosen = None if isinstance(decision, DoesNotFit) else decision
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


def _format_plan(facts: dict[str, Any]) -> str:
    """Format the JSON output as a table for people."""
    lines = [
        f"model        {facts['model']}",
        f"parameters   {facts['parameters']:,} ({facts['weight_bytes'] / MIB:.1f} MiB)",
        f"activations  {facts['activation_bytes'] / MIB:.1f} MiB at the largest batch",
        "",
        "tensor x pipeline   weights a device   activations   fits",
    ]
    for way in facts["ways"]:
        need = MemoryNeed(way["tensor"], way["pipeline"], way["weight_bytes"], way["activation_bytes"])
        sizes = f"{need.weight_bytes / MIB:>12.1f} MiB {need.activation_bytes / MIB:>9.1f} MiB"
        lines.append(f"{need.tensor:>6} x {need.pipeline:<8} {sizes}   {'yes' if way['fits'] else 'no'}")
    chosen = f"{facts['tensor']} x {facts['pipeline']} x {facts['replicas']}" if facts["tensor"] else "none"
    return "\n".join(
        [
            *lines,
            "",
            f"chosen       {chosen} (tensor x pipeline x replicas)",
            f"why          {facts['why']}",
            "",
            *(f"{question} {facts['advice'][key]}" for key, question in _QUESTIONS.items()),
        ]
    )


_QUESTIONS = {
    "fits": "does it fit?          ",
    "limit": "latency or throughput?",
    "change": "smallest change       ",
    "distribution": "spread it?            ",
}
