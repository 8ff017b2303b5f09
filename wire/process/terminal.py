"""What all command lines of this project share: settings of a typer app, and the console for tables.

Rule: in a pipe nothing is wrapped or cut: one row is one line, whatever its length.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wire.process.exit_codes import ExitCode, ExitError

if TYPE_CHECKING:
    from rich.console import Console

# Of every `typer.Typer`. Help is plain text: nothing in it is cut to a column's width.
TYPER_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
PIPE_COLUMNS = 100_000


def require_path(value: Any) -> Any:
    """Callback of a parameter that names what a command reads: one path or several, as `Path` or as text.

    ExitError(MISSING) for a path that is not there; `-` stands for a terminal or standard input, None for nothing.
    """
    for each in value if isinstance(value, list | tuple) else [value]:
        if each is not None and str(each) != "-" and not Path(each).exists():
            raise ExitError(ExitCode.MISSING, f"{each}: no such file or folder")
    return value


def open_console() -> "Console":
    """Return a console for standard output: as wide as the terminal, or without a limit in a pipe."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and most commands print lines

    console = Console()
    return console if console.is_terminal else Console(width=PIPE_COLUMNS)
