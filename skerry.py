"""The command line: it knows the rooms' names, opens one when its command runs; an `ExitError` is one line."""

import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from wire.process.exit_codes import Exit, ExitError

_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class Room(NamedTuple):
    """Where a sub-command lives: `module:name` of a typer app or of one command function.

    `guests`: commands of this room that live in another package, because they need what this one may not import.
    """

    target: str
    help: str
    guests: "dict[str, Room]" = {}  # noqa: RUF012 - never changed


_PUBLISH = {
    "models": Room("cloud_hub.cli.publish:models_publish", "Put a bundle into the hub's update repository."),
    "policy": Room("cloud_hub.cli.publish:policy_publish", "Put a policy into the hub's update repository."),
}
ROOMS = {
    "demo": Room("simulations.cli.demo:app", "Watch a fleet of five do the whole job on this machine."),
    "agent": Room("edge_agent.cli.agent:app", "A device: enrol it, run it, ask how it is."),
    "hub": Room("cloud_hub.cli.hub:app", "A hub: run it, invite devices, replace its CA."),
    "devices": Room(
        "cloud_hub.cli.devices:app",
        "Devices of a hub: list, show, suspend, resume, retire, revoke; their ledgers' heads.",
        {
            "heads": Room(
                "cloud_hub.cli.devices:heads",
                "What the hub has logged of a device's egress ledger.",
            )
        },
    ),
    "ledger": Room("edge_agent.cli.ledger:app", "What left a device: show it, verify it, prove it to others."),
    "models": Room(
        "models.cli.models:app",
        "Bundles: forge, inspect, verify, compare, calibrate, measure, publish, retire them.",
        {
            "publish": _PUBLISH["models"],
            "measure": Room("cloud_hub.cli.measure:measure", "Attack what a bundle's codes give away."),
            "permit": Room("cloud_hub.cli.models:app", "Let devices go down to an older version: a request."),
            "retire": Room(
                "cloud_hub.cli.models:retire",
                "End a version on a hub, once no device speaks it.",
            ),
        },
    ),
    "policy": Room(
        "edge_agent.cli.policy:app",
        "Policies: check a document, explain what it decides, probe it, compare two, publish it.",
        {"publish": _PUBLISH["policy"]},
    ),
    "rollout": Room(
        "cloud_hub.cli.rollout:app",
        "Give a fleet another version wave by wave: start, status, pause, resume, abort, approve, undo.",
    ),
    "keys": Room("models.cli.keys:app", "Offline signing keys: make, show, rotate them; sign requests."),
    "repository": Room("cloud_hub.cli.publish:app", "The hub's update repository: export, install, status."),
    "why": Room("edge_agent.cli.agent:why", "Explain one answer of a running device."),
    "sim": Room("simulations.cli.sim:app", "Ask a simulated fleet: does it hold, in this weather, with these faults?"),
    "erase": Room("edge_agent.cli.agent:erase", "Forget a subject, on the device and at its hubs."),
}

# What brings a third-party module that is not there.
_EXTRAS = {
    "torch": "hub",
    "safetensors": "hub",
    "sqlalchemy": "hub",
    "segno": "hub",
    "onnx": "forge",
    "onnxscript": "forge",
    "sklearn": "forge",
    "plotly": "sim",
}
_OWN = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations")

_QUIET: dict[str, Any] = {"add_completion": False, "no_args_is_help": True, "pretty_exceptions_enable": False}
app = typer.Typer(**_QUIET, help="Skerry: devices answer what they are sure of and forward only what a policy allows.")


def main() -> None:
    """Entry point. Exit codes: docs/exit-codes.md; 130 after Ctrl-C."""
    _see_checkout()
    try:
        app(prog_name="skerry")
    except ExitError as stop:
        _end(stop)
    except ModuleNotFoundError as error:
        _end(_missing(error))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _see_checkout() -> None:
    """In a checkout the rooms that no wheel ships (simulations) lie beside this file."""
    here = Path(__file__).parent
    if (here / "simulations").is_dir() and str(here) not in sys.path:
        sys.path.append(str(here))


def _end(stop: ExitError) -> NoReturn:
    print(f"skerry: {' '.join(str(stop).split())}", file=sys.stderr)
    sys.exit(stop.code)


def _missing(error: ModuleNotFoundError) -> ExitError:
    """Which extra brings the module; a module of ours that is not there is a part that was not installed."""
    name = error.name or ""
    package = name.partition(".")[0]
    if name == "simulations":
        return ExitError(Exit.CONFIG, "this part needs a checkout of the repository; run `make demo` there")
    if package in _OWN:
        return ExitError(Exit.CONFIG, f"{name} is not part of this installation")
    if package in _EXTRAS:
        return ExitError(Exit.CONFIG, f"{package} is not installed; run: pip install 'skerry[{_EXTRAS[package]}]'")
    return ExitError(Exit.CONFIG, f"{name} is not installed; run: pip install --upgrade skerry")


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        print(f"skerry {importlib.metadata.version('skerry')}")
    except importlib.metadata.PackageNotFoundError:
        print("skerry, not installed")
    raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """The callback of --version has run by now."""


def _enter(name: str, room: Room) -> Callable[[typer.Context], None]:
    def enter(ctx: typer.Context) -> None:
        module, _, attribute = room.target.partition(":")
        inside = getattr(importlib.import_module(module), attribute)
        if not isinstance(inside, typer.Typer):
            command, inside = inside, typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            inside.command(name)(command)
        for guest, where in room.guests.items():
            inside.command(guest, help=where.help, context_settings=_PASS_ON)(_enter(f"{name} {guest}", where))
        inside(args=ctx.args, prog_name=f"skerry {name}")

    return enter


# The room parses its own options, --help among them.
_PASS_ON: dict[str, Any] = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
for _name, _room in ROOMS.items():
    app.command(_name, help=_room.help, context_settings=_PASS_ON)(_enter(_name, _room))


if __name__ == "__main__":
    main()
