# ruff: noqa: PLC0415 - each sub-command imports what it needs when it runs, so that `skerry --help` imports no room
"""The command line: it knows the rooms' names, opens one when its command runs, and turns a `Stop` into one line.

`policies` may not read files, so the `policy` commands, which do, live here too.
"""

import importlib
import importlib.metadata
import json
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from wire.exits import Exit, Stop

if TYPE_CHECKING:
    from policies.document import Document
    from policies.policy import Policy

MAX_FILE_BYTES = 1024 * 1024
_SECONDS_A_DAY = 86_400
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class Room(NamedTuple):
    """Where a sub-command lives: `module:name` of a typer app or of one command function.

    `guests`: commands of this room that live in another package, because they need what this one may not import.
    """

    target: str
    help: str
    guests: "dict[str, Room]" = {}  # noqa: RUF012 - never changed


_PUBLISH = {
    "models": Room("cloud_hub.publish_command:models_publish", "Put a bundle into the hub's update repository."),
    "policy": Room("cloud_hub.publish_command:policy_publish", "Put a policy into the hub's update repository."),
}
ROOMS = {
    "demo": Room("simulations.demo_command:app", "Watch a fleet of five do the whole job on this machine."),
    "agent": Room("edge_agent.command:app", "A device: enrol it, run it, ask how it is."),
    "hub": Room("cloud_hub.command:app", "A hub: run it, invite devices, replace its CA."),
    "devices": Room("cloud_hub.devices_command:app", "Devices of a hub: list, show, suspend, resume, retire, revoke."),
    "models": Room(
        "models.command:app",
        "Bundles: forge, inspect, verify, compare, calibrate, measure, publish them.",
        {
            "publish": _PUBLISH["models"],
            "measure": Room("cloud_hub.measure_command:measure", "Attack what a bundle's codes give away."),
        },
    ),
    "keys": Room("models.keys_command:app", "Offline signing keys: make, show, rotate them; sign requests."),
    "repository": Room("cloud_hub.publish_command:app", "The hub's update repository: export, install, status."),
    "why": Room("edge_agent.command:why", "Explain one answer of a running device."),
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
}
_OWN = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations")

_QUIET: dict[str, Any] = {"add_completion": False, "no_args_is_help": True, "pretty_exceptions_enable": False}
app = typer.Typer(**_QUIET, help="Skerry: devices answer what they are sure of and forward only what a policy allows.")
policy_app = typer.Typer(**_QUIET)
app.add_typer(policy_app, name="policy", help="Policies: check a document, explain what it decides, publish it.")


def main() -> None:
    """Entry point. Exit codes: docs/exit-codes.md; 130 after Ctrl-C."""
    _see_checkout()
    try:
        app(prog_name="skerry")
    except Stop as stop:
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


def _end(stop: Stop) -> NoReturn:
    print(f"skerry: {' '.join(str(stop).split())}", file=sys.stderr)
    sys.exit(stop.code)


def _missing(error: ModuleNotFoundError) -> Stop:
    """Which extra brings the module; a module of ours that is not there is a part that was not installed."""
    name = error.name or ""
    package = name.partition(".")[0]
    if name == "simulations":
        return Stop(Exit.CONFIG, "this part needs a checkout of the repository; run `make demo` there")
    if package in _OWN:
        return Stop(Exit.CONFIG, f"{name} is not part of this installation")
    if package in _EXTRAS:
        return Stop(Exit.CONFIG, f"{package} is not installed; run: pip install 'skerry[{_EXTRAS[package]}]'")
    return Stop(Exit.CONFIG, f"{name} is not installed; run: pip install --upgrade skerry")


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
policy_app.command("publish", help=_PUBLISH["policy"].help, context_settings=_PASS_ON)(
    _enter("policy publish", _PUBLISH["policy"])
)


File = Annotated[Path, typer.Argument(help="A policy document (TOML).", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")]


@policy_app.command()
def check(file: File, *, as_json: AsJson = False) -> None:
    """Is the document sound? Says what it lets happen; exit code 11 if it is not sound or has expired."""
    from policies.explain import remarks, summary

    try:
        document = _document(file)
        policy = document.compile()
        _not_expired(file, policy)
    except Stop as stop:
        if not as_json:
            raise
        _print_json({"sound": False, "file": str(file), "error": str(stop)})
        raise typer.Exit(stop.code) from None
    if as_json:
        values = json.loads(document.canonical())
        _print_json({"sound": True, "hash": policy.hash, "remarks": remarks(policy), "policy": values})
        return
    typer.echo("\n".join([typer.style("sound", fg="green") + f"  {file}", *summary(policy)]))
    for remark in remarks(policy):
        typer.echo(typer.style("remark", fg="yellow") + f"  {remark}")


@policy_app.command()
def explain(
    file: File,
    sample: Annotated[str, typer.Argument(help="JSON or TOML file, or JSON itself.", show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """What would happen to a sample: every decision in order, up to the one that keeps it here.

    SAMPLE needs `confidence` and `data_class`; it may have `fields`, `hubs`, `link_up`, `hub_quiet`, `audit_dice`,
    `size_bytes`, `spent_bytes` and `leakage`. Without `fields` and `hubs` those of the policy are taken.
    """
    from policies.explain import FactsError, explain_sample, facts_of, schema_of

    policy = _document(file).compile()
    try:
        facts = facts_of(_sample_values(sample))
    except FactsError as error:
        raise Stop(Exit.SAMPLE, f"sample: {error}") from None
    explanation = explain_sample(policy, schema_of(policy, facts), facts, _today())
    if as_json:
        _print_json(explanation.as_dict())
        return
    *steps, result = explanation.lines()
    typer.echo("\n".join([*steps, typer.style(result, fg="green" if explanation.leaves else "yellow")]))


def _document(file: Path) -> "Document":
    """Stop(POLICY) if it is unreadable or unsound."""
    from policies.document import PolicyError, parse

    text = _text(file, Exit.POLICY)
    try:
        return parse(text)
    except PolicyError as error:
        raise Stop(Exit.POLICY, f"{file}: {error}") from None


def _not_expired(file: Path, policy: "Policy") -> None:
    if policy.expires_day is not None and policy.expires_day < _today():
        raise Stop(Exit.POLICY, f"{file}: expired on {policy.expires}; nothing may leave under it")


def _print_json(values: object) -> None:
    print(json.dumps(values, indent=2))


def _sample_values(sample: str) -> object:
    """Parsed JSON from the command line itself, or from a file; a file named *.toml is TOML."""
    inline = sample.lstrip().startswith("{")
    text = sample if inline else _text(Path(sample), Exit.SAMPLE)
    try:
        return tomllib.loads(text) if not inline and sample.endswith(".toml") else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Stop(Exit.SAMPLE, f"sample: {error}") from None


def _text(file: Path, code: Exit) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise Stop(code, f"{file}: larger than {MAX_FILE_BYTES} bytes")
        return data.decode("utf-8")
    except OSError as error:
        raise Stop(code, f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Stop(code, f"{file}: not UTF-8 text") from None


def _today() -> int:
    return int(time.time() // _SECONDS_A_DAY)


if __name__ == "__main__":
    main()
