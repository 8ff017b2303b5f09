"""Check of a bundle's output folder, before a command spends time on what it would not be allowed to write."""

from pathlib import Path

from models.bundle.replacement import PlaceError, check_place
from wire.process.exit_codes import ExitCode, ExitError


def check_output_folder(out: Path, name: str = "") -> None:
    """Check that a bundle of the model `name` ("" for any) may be written at `out`. ExitError(USAGE) if it may not."""
    try:
        check_place(out, name)
    except PlaceError as error:
        raise ExitError(ExitCode.USAGE, str(error)) from None
