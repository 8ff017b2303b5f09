"""`skerry models retire MODEL@V`: the end of a version on a hub, once no device speaks it any more."""

from typing import Annotated

import typer

from cloud_hub.cli.operations import Office
from cloud_hub.cli.options import AsJson, ConfigFile, State, load_config, say


def retire(
    model: Annotated[str, typer.Argument(help="MODEL@VERSION, as in digits@7.", show_default=False)],
    *,
    force: Annotated[bool, typer.Option("--force", help="Although devices still speak it.")] = False,
    config: ConfigFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Refused with the devices' names while some still speak it; their questions would end `model_gone`."""
    found = Office(load_config(config, state)).retire_model(model, force=force)
    spoke = [row["device"] for row in found["spoke"]]
    say(found if as_json else {"retired": found["retired"], "spoke": spoke}, as_json=as_json)
