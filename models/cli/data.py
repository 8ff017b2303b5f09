"""Commands `skerry data`: list public data sets of the examples and the zoo, fetch them, pack them from local files."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from models.zoo.sources import DATA_VARIABLE, DATASETS, DataSet, list_data_folders, locate_dataset
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import TYPER_SETTINGS, open_console, require_path

app = typer.Typer(**TYPER_SETTINGS)

Name = Annotated[str, typer.Argument(help="A data set of `skerry data list`.", show_default=False)]
Into = Annotated[
    Path | None,
    typer.Option(
        "--into",
        help="Folder for data sets.",
        show_default=f"the one that {DATA_VARIABLE} names, or the user's cache",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_sets(*, as_json: AsJson = False) -> None:
    """List the public data sets: what they are, their licence and publisher, and where they are on this machine.

    Example: skerry data list
    """
    found = {name: locate_dataset(name) for name in DATASETS}
    if as_json:
        rows = [
            {
                "name": each.name,
                "about": each.about,
                "licence": each.licence,
                "page": each.page,
                "fetched": bool(each.urls),
                "folder": str(found[each.name] or ""),
            }
            for each in DATASETS.values()
        ]
        print(json.dumps(rows))
        return
    table = Table("data set", "what it is", "licence", "published at", "on this machine", box=None, pad_edge=False)
    for each in DATASETS.values():
        table.add_row(each.name, each.about, each.licence, each.page, str(found[each.name] or "no"))
    open_console().print(table)


@app.command()
def fetch(
    name: Name,
    *,
    into: Into = None,
    mirror: Annotated[
        str,
        typer.Option(
            "--mirror",
            metavar="URL",
            help="Another server, with the publisher's files in URL/NAME/.",
            show_default=False,
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Download a public data set from its publisher, pack it as it is read here, and check its content.

    Example: skerry data fetch clinc150
    """
    from models.zoo.packing import fetch_dataset  # noqa: PLC0415 - numpy, which `--help` does not need

    known = _find_known(name)
    if mirror and not mirror.startswith(("http://", "https://")):
        raise ExitError(ExitCode.USAGE, f"--mirror: {mirror[:60]!r}: http://HOST/PATH or https://HOST/PATH")

    def tell(done: int, whole: int) -> None:
        if not sys.stderr.isatty():
            return
        print(f"\r{known.name}: {done} of {whole} files", end="", file=sys.stderr, flush=True)
        if done == whole:
            print(file=sys.stderr)

    with _name_disk():
        root = into or list_data_folders()[0]
        _report(known, fetch_dataset(known, root, mirror, tell), as_json)


@app.command()
def pack(
    name: Name,
    given: Annotated[
        Path,
        typer.Argument(
            metavar="FROM",
            callback=require_path,
            help="Folder or archive with the publisher's files, at any depth.",
            show_default=False,
        ),
    ],
    *,
    into: Into = None,
    as_json: AsJson = False,
) -> None:
    """Make a data set from its publisher's files, downloaded by hand, and check its content.

    Example: skerry data pack cmapss_fd001 CMAPSSData.zip
    """
    from models.zoo.packing import pack_dataset  # noqa: PLC0415 - see `fetch`

    known = _find_known(name)
    with _name_disk():
        _report(known, pack_dataset(known, given, into or list_data_folders()[0]), as_json)


@contextmanager
def _name_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        line = f"{error.filename or 'data set'}: {error.strerror}; choose another --into or make room"
        raise ExitError(ExitCode.DISK, line) from None


def _find_known(name: str) -> DataSet:
    known = DATASETS.get(name.replace("-", "_"))
    if known is None:
        raise ExitError(ExitCode.NOT_FOUND, f"{name}: no such data set; there are {', '.join(DATASETS)}")
    if not known.urls:
        raise ExitError(ExitCode.USAGE, f"{name}: no command makes it: {known.page}")
    return known


def _report(known: DataSet, place: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"name": known.name, "folder": str(place), "files": list(known.files)}))
        return
    print(f"{known.name}: {', '.join(known.files)} in {place}; {known.licence}, {known.page}")
    if place.parent not in list_data_folders():
        print(f"next: export {DATA_VARIABLE}={place.parent.absolute()}")
