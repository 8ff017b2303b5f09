"""Files of a report: an outcome as JSON beside its HTML page, written whole and read back."""

import importlib.util
import json
from pathlib import Path

import msgspec
from msgspec.structs import replace

from simulations.report.outcome import Outcome
from simulations.report.page import PAGE_START, render_page
from simulations.scenario.types import Scenario
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_result

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def prepare_folder(folder: Path) -> None:
    """Make the report's folder and check for plotly, before a run and not after it.

    ExitError(DISK) if the folder cannot be made; ModuleNotFoundError without plotly.
    """
    require_plotly()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExitError(ExitCode.DISK, f"{folder}: {error.strerror}") from None


def require_plotly() -> None:
    """Raise ModuleNotFoundError if plotly is not installed."""
    if importlib.util.find_spec("plotly") is None:
        raise ModuleNotFoundError(name="plotly")


def save_report(outcome: Outcome, scenario: Scenario, folder: Path) -> Path:
    """Write NAME.json and NAME.html into `folder`; returns the page's path.

    ExitError(USAGE) where a file of another kind has such a name, ExitError(DISK) if they cannot be written.
    """
    html = folder / f"{outcome.scenario}.html"
    write_page(html, render_page(outcome, scenario))
    figures = json.dumps(outcome.to_plain(), indent=1) + "\n"
    write_result(html.with_suffix(".json"), figures.encode(), is_outcome)
    return html


def write_page(path: Path, text: str) -> None:
    """Write a page, in the place of an earlier one. ExitError(USAGE) for another file, (DISK) if it cannot."""
    write_result(path, text.encode(), is_page)


def is_page(data: bytes) -> bool:
    """Whether a file is a page of the simulator."""
    return data.startswith(PAGE_START.encode())


def is_outcome(data: bytes) -> bool:
    """Whether a file is the outcome of a run."""
    try:
        msgspec.json.decode(data, type=Outcome)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def load_outcome(path: Path) -> Outcome:
    """Load an outcome that `save_report` wrote.

    ExitError(USAGE) if the file cannot be read, ExitError(SCENARIO) if it is no outcome.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Outcome)
    except OSError as error:
        raise ExitError(ExitCode.USAGE, f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ExitError(ExitCode.SCENARIO, f"{path}: is no outcome of a run ({error})") from None


def set_replay_command(outcome: Outcome, again: str) -> Outcome:
    """Set the command that replays the run in each violation; the seed is appended."""
    violations = tuple(replace(each, replay=f"{again} --seed {outcome.seed}") for each in outcome.violations)
    return replace(outcome, violations=violations)


def exit_code_of(outcome: Outcome) -> int:
    """Exit code of a run: broken rules before missed expectations; a run that was stopped early has shown neither."""
    if outcome.violations or not outcome.history.ok:
        return ExitCode.CHECK_FAILED
    if not outcome.complete:
        return INTERRUPTED
    return ExitCode.OK if outcome.ok else ExitCode.EXPECTATION
