"""The `skerry` command line: a table of sub-commands, each imported only when it runs or its words are completed.

Rule: an `ExitError` of a command is printed as one line, and its code is the exit code. `--help` imports no package.
"""
# ruff: noqa: E402 - our own packages are imported once it is sure that they are ours

import importlib
import importlib.metadata
import runpy
import shlex
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
import typer.main
from typer.core import TyperCommand

runpy.run_path(str(Path(__file__).parent / "wire" / "process" / "packages.py"))["refuse_clashes"]("skerry")

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.main import guard_output, print_error
from wire.process.terminal import TYPER_SETTINGS

_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class Subcommand(NamedTuple):
    """A sub-command of `skerry`: where it is implemented, and its line of help.

    `target`: `module:name` of a typer app or of one command function, imported only when the command runs.
    `nested`: commands below it that are implemented in another package, because they need what its own package may not
    import.
    """

    target: str
    help: str
    nested: "dict[str, Subcommand]" = {}  # noqa: RUF012 - never changed


_PUBLISH = {
    "models": Subcommand("cloud_hub.cli.publish:models_publish", "Put a bundle into the hub's update repository."),
    "policy": Subcommand("cloud_hub.cli.publish:policy_publish", "Put a policy into the hub's update repository."),
}
_HUB = {
    "key": Subcommand("cloud_hub.cli.keys:key_app", "API keys of tenants: create, list, revoke."),
    "console": Subcommand(
        "cloud_hub.cli.console:console",
        "Print an address that opens the console, signed in with the admin token: once, within a minute.",
    ),
    "doctor": Subcommand("cloud_hub.cli.doctor:doctor", "Look for what is wrong with a hub, and say what to do."),
    "support": Subcommand(
        "cloud_hub.cli.doctor:support", "Make an archive of a hub for whoever helps, without secrets."
    ),
    "plan": Subcommand("cloud_hub.cli.plan:plan", "Show the size of a model and its placement on devices."),
    "models": Subcommand("cloud_hub.cli.engines:models", "Show every model version of the running hub."),
    "llm": Subcommand("cloud_hub.cli.language_models:llm", "Show the language models of the running hub."),
    "costs": Subcommand(
        "cloud_hub.cli.costs:costs", "Show what was used and what it costs, by day, tenant, model and region."
    ),
    "fetch": Subcommand(
        "cloud_hub.cli.fetch:fetch",
        "Fetch a version from another hub, both parts, into the folder this hub serves from.",
    ),
    "join": Subcommand("cloud_hub.cli.join:join", "Make one more hub of a region."),
    "broker": Subcommand("cloud_hub.cli.broker:broker", "Write what a Mosquitto needs that is no hub's child."),
    "jobs": Subcommand(
        "cloud_hub.cli.jobs:jobs_app", "Work that outlives its request: list, show, cancel, queue again."
    ),
    "store": Subcommand(
        "cloud_hub.cli.store:store_app", "The hub's database: copy it to another, see how far it is upgraded."
    ),
    "ca": Subcommand("cloud_hub.cli.ca:ca_app", "The hub's CA: show, rotate, finish."),
    "backup": Subcommand(
        "cloud_hub.cli.backup:backup", "Write one file with a hub's databases, keys and repository; it may run."
    ),
    "restore": Subcommand("cloud_hub.cli.backup:restore_app", "Put a hub's backup into its state folder."),
    "reload": Subcommand("cloud_hub.cli.reload:reload", "Have a running hub read its configuration again."),
}
_AGENT = {
    "backup": Subcommand(
        "edge_agent.cli.backup:backup", "Write one file with a device's keys and records; it may run."
    ),
    "restore": Subcommand("edge_agent.cli.backup:restore_app", "Put a device's backup into its state folder."),
    "reload": Subcommand("edge_agent.cli.reload:reload", "Have a running agent read its configuration again."),
}
SUBCOMMANDS = {
    "demo": Subcommand("simulations.cli.demo:app", "Run a demo fleet of five devices and a hub on this machine."),
    "new": Subcommand("simulations.cli.projects:new", "Make a project that trains, forges, tests and runs at once."),
    "up": Subcommand(
        "simulations.cli.projects:up", "Run a project on this machine: its hub, its devices, its program."
    ),
    "agent": Subcommand("edge_agent.cli.agent:app", "A device: enrol it, run it, show its status.", _AGENT),
    "hub": Subcommand("cloud_hub.cli.hub:app", "A hub: run it, invite devices, replace its CA.", _HUB),
    "devices": Subcommand(
        "cloud_hub.cli.devices:app",
        "Devices of a hub: list, show, suspend, resume, retire, revoke; their ledgers' heads.",
        {
            "heads": Subcommand(
                "cloud_hub.cli.devices:heads",
                "What the hub has logged of a device's egress ledger.",
            )
        },
    ),
    "ledger": Subcommand("edge_agent.cli.ledger:app", "What left a device: show it, verify it, prove it to others."),
    "models": Subcommand(
        "models.cli.models:app",
        "Bundles: forge, inspect, verify, compare, calibrate, measure, publish, retire them.",
        {
            "publish": _PUBLISH["models"],
            "measure": Subcommand(
                "cloud_hub.cli.measure:measure", "Measure by attacks what a bundle's codes give away."
            ),
            "permit": Subcommand(
                "cloud_hub.cli.models:app", "Request a permit for devices to install an older version."
            ),
            "retire": Subcommand(
                "cloud_hub.cli.models:retire",
                "Retire a version on a hub, once no device uses it.",
            ),
        },
    ),
    "data": Subcommand(
        "models.cli.data:app", "Public data sets of the examples and the zoo: list, fetch and pack them."
    ),
    "policy": Subcommand(
        "edge_agent.cli.policy:app",
        "Policies: check a document, explain what it decides, probe it, compare two, publish it.",
        {"publish": _PUBLISH["policy"]},
    ),
    "rollout": Subcommand(
        "cloud_hub.cli.rollout:app",
        "Roll a model version out to a fleet in waves: start, status, pause, resume, abort, approve, undo.",
    ),
    "keys": Subcommand(
        "models.cli.keys:app",
        "Offline signing keys: make, show, rotate them; sign requests; backup.",
        {
            "backup": Subcommand("models.cli.keys_backup:backup", "Write one file with the keys of a folder."),
            "restore": Subcommand("models.cli.keys_backup:restore", "Put a backup of keys into a folder."),
        },
    ),
    "repository": Subcommand("cloud_hub.cli.publish:app", "The hub's update repository: export, install, status."),
    "why": Subcommand("edge_agent.cli.agent:why", "Explain one answer of a running device."),
    "sim": Subcommand(
        "simulations.cli.sim:app",
        "Run a simulated fleet under network conditions and faults, and check its guarantees.",
        {
            "live": Subcommand(
                "simulations.cli.live:live", "Run a scenario in real time with real agents, a real broker and hub."
            ),
            "fuzz": Subcommand(
                "simulations.cli.fuzz:fuzz", "Search random schedules of faults for one that breaks a law."
            ),
        },
    ),
    "doctor": Subcommand("edge_agent.cli.doctor:doctor", "Look for what is wrong with a device, and say what to do."),
    "support": Subcommand(
        "edge_agent.cli.doctor:support", "Make an archive of a device for whoever helps, without secrets."
    ),
    "erase": Subcommand("edge_agent.cli.agent:erase", "Forget a subject, on the device and at its hubs."),
}

# Third-party module -> the extra of this package that installs it.
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

app = typer.Typer(
    **{**TYPER_SETTINGS, "add_completion": True},
    help="Skerry: devices answer what they are sure of and forward only what a policy allows.",
)


def main() -> None:
    """Run the command line. Exit codes: docs/exit-codes.md; 130 after Ctrl-C."""
    try:
        with guard_output():
            app(prog_name="skerry")
    except ExitError as stop:
        _exit_with(stop)
    except ModuleNotFoundError as error:
        _exit_with(_explain_missing(error))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _exit_with(stop: ExitError) -> NoReturn:
    print_error("skerry", stop)
    sys.exit(stop.code)


def _explain_missing(error: ModuleNotFoundError) -> ExitError:
    """Return the error for a missing module: which extra brings it, or which part was not installed."""
    name = error.name or ""
    package = name.partition(".")[0]
    if package == "simulations":
        return ExitError(ExitCode.CONFIG, "this build has neither demo nor simulator: install the wheel +demo")
    if package == "cloud_hub":
        return ExitError(ExitCode.CONFIG, "this build is a device's and has no hub: install the wheel +hub")
    if package in _OWN:
        return ExitError(ExitCode.CONFIG, f"{name} is not part of this installation")
    return ExitError(ExitCode.CONFIG, f"{name} is not installed; run: {_advise_install(_EXTRAS.get(package))}")


def _advise_install(extra: str | None) -> str:
    """The command that installs what is missing: a checkout sets itself up, a wheel's packages come from a registry.

    Skerry itself is on no registry. `extra`: the part that is missing; None: something that every installation has.
    """
    here = Path(__file__).parent
    if (here / "setup.sh").is_file():
        return f"{shlex.quote(str(here / 'setup.sh'))} demo"
    marker = f'extra == "{extra}"' if extra else ""
    asked = [line.partition(";") for line in importlib.metadata.requires("skerry") or ()]
    wanted = [name.strip() for name, _, condition in asked if condition.strip().replace("'", '"') == marker]
    return shlex.join([sys.executable, "-m", "pip", "install", *wanted])


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        print(f"skerry {importlib.metadata.version('skerry')}")
    except importlib.metadata.PackageNotFoundError:
        print("skerry, not installed")
    raise typer.Exit


@app.callback()
def _show_root(
    *,
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Accept --version, whose callback has run by now."""


class LazyCommand(TyperCommand):
    """Entry of the table: it has its line of help, and hands over to the command that its callback loads."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the loaded command, which parses the words that follow."""
        assert self.callback is not None
        return self.callback().make_context(info_name, args, parent=parent, **extra)


def _make_loader(name: str, subcommand: Subcommand) -> Callable[[], Any]:
    """Return a function that imports a sub-command and returns its click command, which is made once."""

    @cache
    def load() -> Any:
        module, _, attribute = subcommand.target.partition(":")
        inside = getattr(importlib.import_module(module), attribute)
        if not isinstance(inside, typer.Typer):
            command, inside = inside, typer.Typer(**{**TYPER_SETTINGS, "no_args_is_help": False})
            inside.command(name)(command)
        for inner, where in subcommand.nested.items():
            inside.command(inner, cls=LazyCommand, help=where.help)(_make_loader(inner, where))
        return typer.main.get_command(inside)

    return load


for _name, _subcommand in SUBCOMMANDS.items():
    app.command(_name, cls=LazyCommand, help=_subcommand.help)(_make_loader(_name, _subcommand))


if __name__ == "__main__":
    main()
