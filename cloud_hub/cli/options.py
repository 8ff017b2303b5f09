"""Common options and helpers of the hub's commands: configuration, time spans, device ids, text and JSON output."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wire.errors import LocalError
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import require_path
from wire.protocol.topics import join_device_id

if TYPE_CHECKING:
    from cloud_hub.cli.hub_operations import HubOperations
    from cloud_hub.runtime.config import HubConfig

DEFAULT_FILE = Path("hub.toml")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN = re.compile(r"(\d{1,7})([smhd])")

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", callback=require_path, help="TOML file; ./hub.toml if it is there.", show_default=False),
]
State = Annotated[
    Path | None, typer.Option("--state", callback=require_path, help="State folder, over what the file says.")
]
NewState = Annotated[Path | None, typer.Option("--state", help="State folder, over what the file says.")]
NewConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file; ./hub.toml if it is there.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")]


def load_config(config: Path | None, state: Path | None) -> "HubConfig":
    """Load the hub's configuration from a file, or ./hub.toml if it exists, and the environment.

    `state` overrides its state folder. ExitError(CONFIG) with the key that is wrong.
    """
    from cloud_hub.runtime.config import load_hub_config  # noqa: PLC0415 - not for a help text

    loaded = load_hub_config(find_config(config))
    return loaded.model_copy(update={"state": state}) if state else loaded


def open_hub(config: Path | None, state: Path | None) -> "HubOperations":
    """Operations on the hub of a configuration, see `load_config`."""
    from cloud_hub.cli.hub_operations import HubOperations  # noqa: PLC0415 - not for a help text

    return HubOperations(load_config(config, state))


def find_config(config: Path | None) -> Path | None:
    """Return the configuration file: the given one, or ./hub.toml if it exists."""
    return config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)


def full_device_id(tenant: str, device: str) -> str:
    """Return `tenant--device`; a whole id is left as it is. ExitError(USAGE) if it cannot be one."""
    try:
        return device if "--" in device else join_device_id(tenant, device)
    except LocalError as error:
        raise ExitError(ExitCode.USAGE, str(error)) from None


def parse_span(span: str, option: str) -> float:
    """Parse a time span such as 90s, 30m, 1h or 7d into seconds. ExitError(USAGE), naming the option."""
    match = _SPAN.fullmatch(span)
    if not match:
        raise ExitError(ExitCode.USAGE, f"{option} {span!r}: write 90s, 30m, 1h or 7d")
    return float(match[1]) * _UNITS_S[match[2]]


def format_time(ms: int) -> str:
    """Format a time in ms since 1970 for people, UTC; "-" for none."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M") if ms else "-"


def print_record(found: dict[str, Any], *, as_json: bool) -> None:
    """Print one record, as JSON or with a line for each of its fields.

    Fields that end in `_ms` are printed as dates, lists with commas, empty values as "-".
    """
    if as_json:
        typer.echo(json.dumps(found))
        return
    for key, value in found.items():
        shown = format_time(value) if key.endswith("_ms") else ", ".join(value) if isinstance(value, list) else value
        name = key.removesuffix("_ms")  # the unit is that of the number, not of the date
        typer.echo(f"{name:<20} {shown if shown != '' else '-'}")
