"""`skerry hub llm`: the language models of a running hub, and the state of each of their replicas."""

import json
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from cloud_hub.cli.options import AsJson, ConfigFile, State, open_hub
from wire.process.terminal import open_console


def llm(*, config: ConfigFile = None, state: State = None, as_json: AsJson = False) -> None:
    """Show the language models of the running hub: their replicas, which are ready, and why the others are not.

    Example: skerry hub llm
    """
    found = open_hub(config, state).list_language_models()
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("model", "replica", "state", "running", "answered", "failed", "cache", "note", box=None)
    for model in found:
        for replica in model["replicas"]:
            table.add_row(escape(model["model"]), escape(replica["url"]), *_describe_replica(replica))
    open_console().print(table if found else "no language models: [[llm]] in hub.toml names them")


def _describe_replica(replica: dict[str, Any]) -> tuple[str, ...]:
    state = "not ready" if not replica["ready"] else "breaker open" if replica["breaker_open"] else "ready"
    counts = (str(replica[name]) for name in ("in_flight", "answered", "failed"))
    return state, *counts, f"{replica['engine']['kv_usage']:.0%}", escape(replica["why"])
