"""Findings of a checkup: one line a check, each with what to do about it; printed for people or as JSON.

Rule: a check never ends the checkup. What it raises as an `ExitError` is its finding, for such a line says what to do.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from wire.process.exit_codes import ExitCode, ExitError

_DAY_S = 86_400.0
_MIB = 1 << 20
FULL_BYTES, SHORT_BYTES = 64 * _MIB, 512 * _MIB
CLOCK_OFF_S = 60.0


class Severity(StrEnum):
    """What a finding means: nothing to do, something to do soon, something that stops the work, not looked at."""

    FINE = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


class Finding(NamedTuple):
    """What a check found. `advice`: what to do, "" where the text says it or nothing is to be done."""

    check: str
    severity: Severity
    text: str
    advice: str = ""


Check = Callable[[], Iterable[Finding]]


def run_checks(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Every finding, in the order of the checks, each as soon as it is there."""
    for name, check in checks:
        try:
            yield from check()
        except ExitError as error:
            yield Finding(name, Severity.PROBLEM, str(error))


def judge_disk(check: str, free_bytes: int) -> Finding:
    """Whether there is room left where a process writes."""
    text = f"{free_bytes // _MIB:,} MiB free"
    if free_bytes < FULL_BYTES:
        return Finding(check, Severity.PROBLEM, text, f"make room: below {FULL_BYTES // _MIB} MiB writing may fail")
    if free_bytes < SHORT_BYTES:
        return Finding(check, Severity.WARNING, text, "make room soon")
    return Finding(check, Severity.FINE, text)


def judge_certificate(check: str, begin_ms: int, end_ms: int, now_ms: int, renew: str) -> Finding:
    """Whether a certificate is good at `now_ms`, and for how much of its life. `renew`: how it is renewed."""
    left_days = (end_ms - now_ms) / 1000 / _DAY_S
    if now_ms < begin_ms:
        return Finding(check, Severity.WARNING, "begins later than this machine's time", "set the clock")
    if left_days <= 0:
        return Finding(check, Severity.PROBLEM, f"ended {-left_days:.1f} days ago", renew)
    text = f"good for {left_days:.1f} days"
    if end_ms - now_ms < (end_ms - begin_ms) / 6:  # it is renewed of itself at two thirds of its life
        return Finding(check, Severity.WARNING, f"{text} of {(end_ms - begin_ms) / 1000 / _DAY_S:.0f}", renew)
    return Finding(check, Severity.FINE, text)


def judge_clock(check: str, off_s: float, whose: str) -> Finding:
    """Whether this machine's clock is that of another machine. `off_s`: ours less theirs, seconds."""
    if abs(off_s) <= CLOCK_OFF_S:
        return Finding(check, Severity.FINE, f"within {CLOCK_OFF_S:.0f} s of {whose}")
    side = "ahead of" if off_s > 0 else "behind"
    return Finding(
        check, Severity.WARNING, f"{abs(off_s):,.0f} s {side} {whose}", "set the clock: timedatectl set-ntp true"
    )


def judge_stop(check: str, running: Path) -> Finding:
    """How the process that does not run now ended. `running`: a file that is there while it runs, and after a kill."""
    if not running.exists():
        return Finding(check, Severity.FINE, "does not run now")
    return Finding(
        check, Severity.WARNING, "does not run, and was not stopped in order: it was killed, or the power failed",
        "see the end of its log, then start it: nothing accepted is lost",
    )  # fmt: skip


def report_findings(findings: Sequence[Finding], *, as_json: bool) -> ExitCode:
    """Print findings and what they come to; returns the exit code: 40 where there is a problem, a warning is none."""
    worst = find_worst(findings)
    if as_json:
        print(json.dumps({"worst": worst, "findings": [found._asdict() for found in findings]}, indent=2))
    else:
        count = sum(each.severity is worst for each in findings)
        print(*format_findings(findings), "all is well" if worst is Severity.FINE else f"{worst}s: {count}", sep="\n")
    return ExitCode.CHECK_FAILED if worst is Severity.PROBLEM else ExitCode.OK


def format_findings(findings: Sequence[Finding]) -> Iterator[str]:
    """One line each: severity, check, text, advice."""
    width = max((len(found.check) for found in findings), default=0)
    for found in findings:
        advice = f"; {found.advice}" if found.advice else ""
        yield f"{found.severity:<8} {found.check:<{width}}  {found.text}{advice}"


def find_worst(findings: Sequence[Finding]) -> Severity:
    """The severity that counts: a problem, else a warning, else fine."""
    found = {each.severity for each in findings}
    return next((each for each in (Severity.PROBLEM, Severity.WARNING) if each in found), Severity.FINE)
