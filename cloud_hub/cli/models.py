"""`skerry models permit` and `retire`: downgrade permits, and the end of a version.

Rule: no hub signs a permit. The command writes a request; what is signed with the targets keys and installed here is
what devices obey, and nothing else of it is.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from cloud_hub.cli.hub_operations import HubOperations
from cloud_hub.cli.options import AsJson, ConfigFile, State, open_hub, parse_span, print_record
from cloud_hub.cli.publish import Out, map_publish_errors, open_repository, print_published, utc_moment
from cloud_hub.registry.device_states import GONE
from cloud_hub.repository.publish import publish_permit
from models.signing.roles import MAX_PERMIT_DEVICES, Permit
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import TYPER_SETTINGS, require_path

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
    named = () if all_devices else _name_devices(open_hub(config, state), device or ())
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
    found = open_hub(config, state).retire_model(model, force=force)
    spoke = [row["device"] for row in found["spoke"]]
    print_record(found if as_json else {"retired": found["retired"], "spoke": spoke}, as_json=as_json)


Folder = Annotated[
    Path, typer.Argument(callback=require_path, help="A bundle: the folder with manifest.json.", show_default=False)
]
