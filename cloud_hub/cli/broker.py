"""`skerry hub broker`: the files of a Mosquitto that outlives every hub, written once or kept up to date."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cloud_hub.cli.options import AsJson, ConfigFile, NewState, load_config
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog, safe_name

WATCH_EVERY_S = 5.0
_PASSING = frozenset({ExitCode.SERVER_DOWN, ExitCode.DATABASE, ExitCode.DISK})  # a watcher tries again


def broker(
    folder: Annotated[Path, typer.Argument(help="Folder of the broker's files.", show_default=False)],
    *,
    listen: Annotated[str, typer.Option("--listen", help="Address it listens at, at [broker] port.")] = "0.0.0.0",  # noqa: S104 - devices come from elsewhere
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep them up to date, until Ctrl-C; wait for the region's first hub.")
    ] = False,
    config: ConfigFile = None,
    state: NewState = None,
    as_json: AsJson = False,
) -> None:
    """Write what a Mosquitto needs that is no hub's child: configuration, access rules, trusted CAs, a certificate.

    Needs [broker] start = false. Of a region (`[store] url`) it may run beside a hub; it reads region.key in the state
    folder. A running broker sees a new CA by itself and is to be restarted when FOLDER/restart.stamp is written.

    Example: skerry hub broker /etc/skerry-broker --config hub.toml
    """
    from cloud_hub.runtime.broker_files import BrokerFiles, NoRegionYetError  # noqa: PLC0415 - the hub's parts

    files = BrokerFiles(load_config(config, state), folder, listen)
    if watch:
        _watch(files.write, NoRegionYetError)
    try:
        written = files.write()
    except NoRegionYetError:
        raise ExitError(ExitCode.REGION_KEY, "the database has no hub yet: start the region's first hub") from None
    if as_json:
        typer.echo(json.dumps({"folder": str(folder.absolute()), "written": written}))
        return
    typer.echo("\n".join(f"written  {folder / name}" for name in written) or "nothing had to be written")
    typer.echo(f"next     mosquitto -c {folder.absolute() / 'mosquitto.conf'}")


def _watch(write: Callable[[], list[str]], no_region: type[Exception]) -> NoReturn:
    """Write again every few seconds, without an end. ExitError for what does not pass by itself."""
    log, said = JsonLog(), ""
    while True:
        why = ""
        try:
            if written := write():
                log.info("broker_files", written=len(written))
        except no_region:
            why = "no_hub_yet"
        except ExitError as error:
            if error.code not in _PASSING:
                raise
            why = error.code.name
        if why and why != said:
            log.warning("broker_files_wait", why=safe_name(why))
        said = why
        time.sleep(WATCH_EVERY_S)
