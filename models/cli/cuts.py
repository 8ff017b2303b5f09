"""Command `skerry models cuts`: lists where a user's model can be cut, without forging it.

Rule: the user's code runs in this process, as `skerry models forge` runs it, and what is wrong is said in the same
words with the same exit codes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from models.cli.flags import accepts_flags
from models.cli.forge import translate_errors
from models.cli.progress import stage_progress
from models.forge.spec import Effort
from wire.process.exit_codes import ExitCode
from wire.process.terminal import open_console

if TYPE_CHECKING:
    from models.forge.partition.cost import CutCost
    from models.forge.partition.cuts import Cut
    from models.forge.pipeline.cut_listing import CutListing

_FUNCTION = "PKG:FUNCTION"
_Model = typer.Argument(metavar=_FUNCTION, help="Returns your torch model, or is one.", show_default=False)
_Data = typer.Option("--data", metavar=_FUNCTION, help="Returns (x, y), (x, y, labels) or a Data.", show_default=False)
_Measure = typer.Option("--measure", help="Measure each: microseconds, bytes of its codes, accuracy. Takes minutes.")
_Effort = typer.Option("--effort", help="With --measure: how many samples, and how much work on each cut.")
_Json = typer.Option("--json", help="Print JSON instead of text.")


@dataclass(frozen=True)
class CutsFlags:
    """Flags of `skerry models cuts`, as typed."""

    model: Annotated[str, _Model]
    data: Annotated[str, _Data]
    measure: Annotated[bool, _Measure] = False
    effort: Annotated[Effort, _Effort] = Effort.NORMAL
    as_json: Annotated[bool, _Json] = False


@accepts_flags(CutsFlags)
def cuts(flags: CutsFlags) -> None:
    """List the places where your model can be cut: name, share of the work before it, shapes, bytes of its features.

    A name is one for `skerry models forge --cut`. Nothing is trained or written; seconds without --measure. With it:
    time of head and tail, bytes of training-free codes and the accuracy they keep. Exit code 12 for a model that cannot
    be traced, cut or run by a hub, 13 for the data.

    Example: skerry models cuts nets:model --data nets:samples
    """
    found = _list_cuts(flags)
    if flags.as_json:
        open_console().print_json(data=found.as_fields())
        return
    open_console().print(_build_table(found))
    word = f"{found.macs:,} multiply-accumulates and {found.sample_bytes:,} B of input a sample"
    open_console().print(word, markup=False, highlight=False)


def _list_cuts(flags: CutsFlags) -> "CutListing":
    """Load model and data and list the cuts. ExitError, with the code that fits, if anything is wrong with them."""
    with stage_progress() as tell:
        tell("loading", 0.0)
        from models.forge.pipeline.cut_listing import list_cuts  # noqa: PLC0415 - torch takes a second, and --help needs none
        from models.forge.pipeline.loading import load_data, load_model  # noqa: PLC0415 - as above

        with translate_errors(ExitCode.MODEL):
            model = load_model(flags.model, Path.cwd())
        with translate_errors(ExitCode.SAMPLE):
            data = load_data(flags.data, Path.cwd())
        tell("loading", 1.0)
        stage = "measuring cuts" if flags.measure else "cutting"
        tell(stage, 0.0)
        with translate_errors(ExitCode.MODEL):
            effort = flags.effort if flags.measure else None
            found = list_cuts(model, data, measure=effort, tell=lambda share: tell(stage, share))
        tell(stage, 1.0)
    return found


def _build_table(found: "CutListing") -> Table:
    measured = ("head us", "tail us", "coded B", "levels", "accuracy or RMSE", "lost") if found.costs else ()
    names = ("work before it", "shapes", "raw B", *measured)
    title = "accuracy or RMSE, and lost, on calibration samples" if found.costs else None
    columns = Column("cut", overflow="fold"), *(Column(name, justify="right") for name in names)
    table = Table(*columns, box=None, title=title, title_justify="left")
    for cut in found.cuts:
        cells = _format_cut(cut) + (_format_cost(found.costs.get(cut.name)) if found.costs else ())
        table.add_row(*(Text(cell) for cell in cells))  # Text: brackets of shapes are no markup
    return table


def _format_cut(cut: "Cut") -> tuple[str, ...]:
    shapes = " + ".join(str(list(shape)) for shape in cut.shapes)
    return cut.name, f"{cut.share:.1%}", shapes, f"{4 * cut.values:,}"


def _format_cost(row: "CutCost | None") -> tuple[str, ...]:
    if row is None:
        return ("",) * 6
    times = tuple(f"{time:.0f}{'?' if row.busy else ''}" for time in (row.head_us, row.tail_us))
    return *times, f"{row.coded_bytes:,}", str(row.levels), f"{row.accuracy:.4f}", f"{row.lost:.4f}"
