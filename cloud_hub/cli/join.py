"""`skerry hub join`: one more hub of a region, from its database and `region.key`; the file a new hub begins with."""

import json
import shutil
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from cloud_hub.cli.options import DEFAULT_FILE, AsJson, print_record
from cloud_hub.runtime.config import load_hub_config
from models.cli.flags import accepts_flags
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import require_path

TEMPLATE_FILE = "hub.toml"


@dataclass(frozen=True)
class JoinFlags:
    """Flags of `skerry hub join`."""

    url: Annotated[str, typer.Argument(help="The region's [store] url, postgresql+psycopg://USER@HOST/DATABASE.")]
    key: Annotated[
        Path,
        typer.Option("--key", callback=require_path, help="region.key, from the state folder of a hub of the region."),
    ]
    member: Annotated[str, typer.Option("--member", help="Which hub this is: hub-2 ... hub-16.")] = "hub-2"
    config: Annotated[Path, typer.Option("--config", help="TOML file to write.")] = DEFAULT_FILE
    state: Annotated[Path, typer.Option("--state", help="State folder, empty.")] = Path("hub")
    model: Annotated[list[Path] | None, typer.Option("--model", help="Bundle folder; once for each model.")] = None
    as_json: AsJson = False


@accepts_flags(JoinFlags)
def join(flags: JoinFlags) -> None:
    """Make one more hub of a region: its configuration, and a state folder with the region's CA, keys and repository.

    Example: skerry hub join postgresql+psycopg://hub@db/skerry --key region.key --member hub-2
    """
    from cloud_hub.database.server import check_server  # noqa: PLC0415 - the hub's parts, for this command alone
    from cloud_hub.region.shared_files import KEY_FILE, SharedFiles  # noqa: PLC0415
    from cloud_hub.runtime.bootstrap import open_state  # noqa: PLC0415
    from cloud_hub.system.state_folder import StateDir  # noqa: PLC0415
    from wire.http.access import load_token  # noqa: PLC0415
    from wire.process.daemon import FolderLock  # noqa: PLC0415

    if flags.config.exists():
        raise ExitError(ExitCode.CONFIG, f"{flags.config} is there already: name another file with --config")
    check_server(flags.url)
    root = StateDir(flags.state.expanduser().absolute()).prepare().root
    with FolderLock(root):
        _copy_key(flags.key, root / KEY_FILE)
        shared = SharedFiles.open(flags.url, root)
        shared.close()
        facts = shared.facts
        values: dict[str, str | int | bool] = {
            "hub.name": facts.name,
            "hub.member": flags.member,
            "hub.region": facts.region,
            "store.url": flags.url,
        }
        values |= {"broker.start": False, "broker.host": facts.broker_host, "broker.port": facts.broker_port}
        write_config(flags.config, _set_keys(fill_template(flags.state, flags.model or []), values))
        settings = load_hub_config(flags.config)
        ground = open_state(settings)
        load_token(settings.server_access())
    made = {
        "configuration": str(flags.config),
        "state": str(root),
        "authority": ground.authorities.sha256,
        "hub": f"{flags.member} of {facts.name} in {facts.region}",
        "next": f"skerry hub run --config {flags.config}",
    }
    print_record(made, as_json=flags.as_json)


def fill_template(state: Path, models: list[Path]) -> str:
    """Return the text of a new configuration file: the shipped one, with this state folder and these bundles."""
    text = resources.files("cloud_hub").joinpath(TEMPLATE_FILE).read_text(encoding="utf-8")
    text = text.replace('state = "hub"', f"state = {json.dumps(str(state.expanduser().absolute()))}", 1)
    found = json.dumps([str(path.expanduser().absolute()) for path in models])
    return text.replace("models = []", f"models = {found}", 1)


def write_config(file: Path, text: str) -> None:
    """Write a configuration file, mode 0600: the database's password may stand in it. ExitError(DISK) if it cannot."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{file}: {error.strerror}") from None


def _set_keys(text: str, values: dict[str, str | int | bool]) -> str:
    """Set keys, named `TABLE.KEY`, that the template shows behind a #."""
    lines = text.splitlines(keepends=True)
    for name, value in values.items():
        table, _, key = name.partition(".")
        start = next(index for index, line in enumerate(lines) if line.startswith(f"[{table}]"))
        found = next(index for index in range(start, len(lines)) if lines[index].startswith(f"# {key} = "))
        lines[found] = f"{key} = {json.dumps(value)}\n"
    return "".join(lines)


def _copy_key(source: Path, target: Path) -> None:
    """Copy region.key into the state folder, mode 0600."""
    if target.exists() and source.resolve() == target.resolve():
        return
    try:
        target.touch(mode=0o600)
        shutil.copyfile(source, target)
    except OSError as error:
        raise ExitError(ExitCode.REGION_KEY, f"{source}: {error.strerror}; copy it from a hub of the region") from None
