"""`skerry models permit`: asks the holders of the offline keys to let devices go down to an older version.

Law: no hub signs this. The command writes a request; what is signed with the targets keys and installed here is what
devices obey, and nothing else of it is.
"""

from datetime import timedelta
from typing import Annotated

import typer

from cloud_hub.cli.options import QUIET, AsJson, ConfigFile, seconds
from cloud_hub.cli.publish import Out, guard, now, open_repository, say_published
from cloud_hub.repository.publish import publish_permit
from models.signing.merging_roles_permits import Permit

app = typer.Typer(**QUIET)


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
    request: Out = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Let devices go down to an older version: a request for whoever holds the targets keys, who sign offline."""
    moment = now()
    ends_ms = int((moment + timedelta(seconds=seconds(lasts, "--for"))).timestamp() * 1000)
    asked = Permit(family, below, to, ends_ms, why)
    say_published(guard(lambda: publish_permit(open_repository(config), asked, moment)), request, as_json=as_json)
