"""Where reports lie: an outcome as JSON beside its page, written whole, and read back to be looked at or compared."""

import importlib.util
import json
from pathlib import Path

import msgspec
from msgspec.structs import replace

from simulations.report.outcome import Outcome
from simulations.report.page import page
from simulations.scenario.types import Scenario
from wire.process.exit_codes import Exit, ExitError

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def prepare(folder: Path) -> None:
    """Said before a run and not after it: that its report could not be drawn, or not be written."""
    can_draw()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExitError(Exit.DISK, f"{folder}: {error.strerror}") from None


def can_draw() -> None:
    """ModuleNotFoundError if there is nothing to draw with."""
    if importlib.util.find_spec("plotly") is None:
        raise ModuleNotFoundError(name="plotly")


def keep(outcome: Outcome, scenario: Scenario, folder: Path) -> Path:
    """NAME.json and NAME.html in `folder`; the page's path."""
    html = folder / f"{outcome.scenario}.html"
    write(html, page(outcome, scenario))
    write(html.with_suffix(".json"), json.dumps(outcome.plain(), indent=1) + "\n")
    return html


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ExitError(Exit.DISK, f"{path}: {error.strerror}") from None


def saved(path: Path) -> Outcome:
    """What `keep` has written."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Outcome)
    except OSError as error:
        raise ExitError(Exit.USAGE, f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ExitError(Exit.SCENARIO, f"{path}: is no outcome of a run ({error})") from None


def replayed_by(outcome: Outcome, again: str) -> Outcome:
    """With the command that runs it again, for whoever reads of a broken law."""
    violations = tuple(replace(each, replay=f"{again} --seed {outcome.seed}") for each in outcome.violations)
    return replace(outcome, violations=violations)


def exit_of(outcome: Outcome) -> int:
    """Laws before expectations; a run that was stopped early has shown neither."""
    if outcome.violations or not outcome.history.ok:
        return Exit.CHECK_FAILED
    if not outcome.complete:
        return INTERRUPTED
    return Exit.OK if outcome.ok else Exit.EXPECTATION
