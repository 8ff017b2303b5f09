"""`skerry models forge`: from a user's torch model to a bundle, on the command line.

Law: the user's code runs in this process, with the working folder first on the path: it is code they trust. What is
wrong is said in one line, with exit code 10 for a wish that cannot be, 12 for the model, 13 for the data.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from models.bundle.bundle import Bundle
from models.cli.flags import takes
from models.cli.merging_forge_forge_flags import ForgeFlags
from models.forge.data.types import ForgeError
from models.forge.merging_spec_wish import Aids, check_wish
from wire.process.exit_codes import Exit, ExitError

if TYPE_CHECKING:
    from torch import nn

    from models.forge.data.types import Data
    from models.forge.partition.merging_cost_heads import HeadCost


@takes(ForgeFlags)
def forge(flags: ForgeFlags) -> None:
    """Turn any torch classifier or regressor into a bundle: small, fast, calibrated, measured for leakage.

    skerry models forge my_pkg:build_model --data my_pkg:samples --out my-model-1

    The model is cut where few bytes leave a device; a bottleneck is taught; the device's half becomes a quantised
    graph; a threshold is chosen; attacks measure what the bytes give away. A report lies in FOLDER.report/report.html.
    Started again after an interruption, it goes on where it was.
    """
    began = time.monotonic()
    bundle = run(flags)
    _tell(bundle, time.monotonic() - began, as_json=flags.as_json)


def run(flags: ForgeFlags) -> Bundle:
    """ExitError, with the code that fits, if anything is wrong with what the user gave."""
    with stages() as tell:
        tell("loading", 0.0)
        from models.forge.pipeline.forge import forge as forged  # noqa: PLC0415 - torch takes a second, and --help needs none

        with _blame(Exit.CONFIG):
            check_wish(flags.wish)
        with _blame(Exit.MODEL):
            model, aids = _given(flags)
        with _blame(Exit.SAMPLE):
            data = _data(flags.data)
        tell("loading", 1.0)
        with _blame(Exit.MODEL):
            return forged(model, data, flags.wish, flags.out, tell, aids=aids)


def _given(flags: ForgeFlags) -> "tuple[nn.Module, Aids]":
    from models.forge.pipeline.loading import load_function, load_model  # noqa: PLC0415 - see `run`

    here = Path.cwd()
    small = load_model(flags.edge_model, here) if flags.edge_model else None
    vary = load_function(flags.augment, here) if flags.augment else None
    added = Aids(edge_model=small, augment=vary, cache=flags.cache_folder, source=flags.model)
    return load_model(flags.model, here), added


def _data(where: str) -> "Data":
    from models.forge.pipeline.loading import load_data  # noqa: PLC0415 - see `run`

    return load_data(where, Path.cwd())


@contextmanager
def _blame(code: Exit) -> Iterator[None]:
    """Data errors are told apart from the model's by their first word, wherever they are found."""
    try:
        yield
    except ForgeError as error:
        _show(getattr(error, "rows", ()))
        text = str(error)
        found = Exit.SAMPLE if text.startswith("data") else Exit.CONFIG if text.startswith("--") else code
        raise ExitError(found, text) from None
    except OSError as error:
        raise ExitError(Exit.DISK, f"{error.filename}: {error.strerror}; choose another folder or make room") from None


@contextmanager
def stages() -> Iterator[Callable[[str, float], None]]:
    """A line per stage on standard error, with the time it took or the time it will take."""
    columns = (
        TextColumn("{task.description:<15}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, share: float) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=1.0)
            bar.update(tasks[stage], completed=share)

        yield tell


def _show(rows: "Sequence[HeadCost]") -> None:
    """The cuts that were measured, on standard error: what a wish can be chosen from."""
    if not rows:
        return
    table = Table("cut", "head ms", "tail ms", "coded B", "accuracy", "leakage", title="measured so far, and kept")
    for row in rows:
        speed = f"{row.head_us / 1e3:.3f}", f"{row.tail_us / 1e3:.3f}"
        leakage = "" if row.leakage is None else f"{row.leakage:.2f}"
        table.add_row(row.cut.name, *speed, f"{row.coded_bytes:,}", f"{row.accuracy:.4f}", leakage)
    Console(stderr=True).print(table)


def _tell(bundle: Bundle, seconds: float, *, as_json: bool) -> None:
    from models.cli.compare import facts, figures  # noqa: PLC0415 - numpy only after the work is done

    page = bundle.path.with_name(bundle.path.name + ".report") / "report.html"
    if as_json:
        Console().print_json(data={**facts(bundle), "report": str(page), "took_s": round(seconds, 1)})
        return
    table = Table.grid("", Column("", overflow="fold"), padding=(0, 2, 0, 0))
    for name, value in figures(bundle).items():
        table.add_row(Text(name, style="bold"), Text(value))
    console = Console()
    console.print(table)
    console.print(f"bundle  {bundle.path}\nreport  {page}", markup=False, highlight=False, soft_wrap=True)
