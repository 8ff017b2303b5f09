"""`skerry hub models`: every version on a running hub, its state, and what it computes on."""

import json
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from cloud_hub.cli.options import AsJson, ConfigFile, State, open_hub
from policies.serving.placement import format_size
from wire.process.terminal import open_console


def models(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Show every model version of the running hub: its state, what it computes on, and its replicas.

    Example: skerry hub models
    """
    found = open_hub(config, state).list_models()
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("model", "state", "device", "precision", "weights", "replicas", "devices", "note", box=None)
    for row in found:
        setup, replicas = _describe_setup(row["setup"]), _describe_replicas(row["replicas"])
        table.add_row(row["model"], row["state"].lower(), *setup, replicas, *_describe_use(row))
    open_console().print(table if found else "no models: set models = [bundle folder, ...] in hub.toml")


def _describe_setup(setup: dict[str, Any] | None) -> tuple[str, str, str]:
    """Return device, precision and size of the weights as text; dashes for a version that is not loaded."""
    if setup is None:
        return "-", "-", "-"
    return setup["device"], setup["precision"], format_size(setup["weight_bytes"])


def _describe_replicas(replicas: dict[str, Any] | None) -> str:
    """Return how many replicas run of those that the model's load asks for; a dash if it is not scaled."""
    return f"{replicas['running']} of {replicas['wanted']}" if replicas else "-"


def _describe_use(row: dict[str, Any]) -> tuple[str, str]:
    """Return the number of devices that use a version, and why it is not as it was asked to be."""
    setup = row["setup"] or {}
    fallback, steps = setup.get("fallback", ""), setup.get("steps", "")
    lacks = (row["replicas"] or {}).get("why", "")
    notes = [f"fallback: {fallback}" if fallback else "", f"compiled: {steps}" if steps else ""]
    notes.append(f"no further replica: {lacks}" if lacks else "")
    return str(row["speaking"]), escape(row["reason"] or "; ".join(filter(None, notes)))
