"""Policy files for the commands: documents, shipped templates and their probes, samples. Each fault is one line."""

import json
import re
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_agent.system.environment import minutes_of_week
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_file_text
from wire.process.terminal import require_path
from wire.toml import parse_toml

if TYPE_CHECKING:
    from policies.analysis.probes import Probe
    from policies.language.document import PolicyDocument
    from policies.model.policy import Policy

PROBED = ("clinic", "factory", "shop-camera", "telecom-probe", "airgap")
TEMPLATES = (*PROBED, "demo")
PROBES = ".probes.toml"
TEMPLATE_LIFETIME = timedelta(days=90)
_SECONDS_A_DAY = 86_400
_ISSUED, _EXPIRES = "issued = ", "expires = "
_DATE_CHARS = 10
_TABLE = re.compile(r"\[+([^\[\]]+)\]+")
_VERSION = re.compile(r"(version\s*=\s*)(\d+)")
_THRESHOLD = re.compile(r"(threshold\s*=\s*)([0-9.eE+-]+)")


def read_today() -> int:
    """Today as days since 1970, UTC."""
    return int(time.time() // _SECONDS_A_DAY)


def read_documents(files: Sequence[Path]) -> "tuple[PolicyDocument, ...]":
    """Parse the layers of one policy. ExitError(POLICY) for the first that is unreadable or unsound."""
    return tuple(read_document(file) for file in files)


def read_document(file: Path) -> "PolicyDocument":
    """Parse one policy document. ExitError(POLICY) if it is unreadable or unsound."""
    from policies.language.document import PolicyError, parse_policy  # noqa: PLC0415 - `skerry policy show` needs no parser

    text = read_file_text(file, ExitCode.POLICY)
    try:
        return parse_policy(text)
    except PolicyError as error:
        raise ExitError(ExitCode.POLICY, f"{file}: {error}") from None


def read_policy(files: Sequence[Path]) -> "Policy":
    """Compose these layers to one policy. ExitError(POLICY) if one is unsound, or they contradict each other."""
    from policies.language.document import compose_policy  # noqa: PLC0415
    from policies.model.policy import PolicyError  # noqa: PLC0415

    try:
        return compose_policy(read_documents(files))
    except PolicyError as error:
        raise ExitError(ExitCode.POLICY, f"{', '.join(map(str, files))}: {error}") from None


def split_probes(files: Sequence[Path]) -> tuple[list[Path], Path]:
    """Split file arguments into documents and a probes file: the last argument, else the one beside the last document.

    Raises ExitError(USAGE) if only a probes file is named.
    """
    if files[-1].name.endswith(PROBES) or (len(files) > 1 and "probes" in files[-1].name):
        if len(files) == 1:
            raise ExitError(ExitCode.USAGE, f"name the policy too: skerry policy test POLICY {files[0]}")
        return [*files[:-1]], files[-1]
    return [*files], probes_path(files[-1])


def probes_path(file: Path) -> Path:
    """Path of the probes file beside a document: NAME.probes.toml."""
    return file.with_name(file.stem + PROBES)


def read_probes(file: Path) -> "tuple[Probe, ...]":
    """Parse a probes file. ExitError(SAMPLE) if it is unreadable or none."""
    from policies.analysis.probes import ProbesError, parse_probes  # noqa: PLC0415

    try:
        return parse_probes(read_file_text(file, ExitCode.SAMPLE))
    except ProbesError as error:
        raise ExitError(ExitCode.SAMPLE, f"{file}: {error}") from None


def read_local_times(zones: Sequence[str]) -> dict[str, int]:
    """Minutes since Monday 00:00 in each zone, now; a zone that this machine does not know is left out."""
    return dict(minutes_of_week(datetime.now(UTC), zones))


def describe_template(name: str) -> str:
    """The first sentence of a template's first comment."""
    comment = " ".join(line.lstrip("# ") for line in read_shipped(name).splitlines() if line.startswith("#"))
    return comment.partition(". ")[0].partition(": ")[2] or comment.partition(". ")[0]


def read_sample(sample: str) -> object:
    """Parse a sample: JSON on the command line itself, or a file, in which *.toml is TOML.

    ExitError(SAMPLE) for a fault.
    """
    inline = sample.lstrip().startswith("{")
    text = sample if inline else read_file_text(Path(sample), ExitCode.SAMPLE)
    try:
        return parse_toml(text) if not inline and sample.endswith(".toml") else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExitError(ExitCode.SAMPLE, f"sample: {error}") from None


def set_threshold(text: str, threshold: float) -> str:
    """A policy document with this threshold under [escalation], as its next version; unchanged where it has it already.

    ValueError, one line, where the document states no threshold there or no version.
    """
    table, version_at, threshold_at, lines = "", None, None, text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if header := _TABLE.match(line):
            table = header[1]
        elif not table and _VERSION.match(line):
            version_at = number
        elif table == "escalation" and _THRESHOLD.match(line):
            threshold_at = number
    if version_at is None or threshold_at is None:
        raise ValueError("states no version, or no threshold under [escalation]")
    value, line = f"{threshold:.4g}", lines[threshold_at]
    if float(_THRESHOLD.sub(r"\2", line.partition("#")[0])) == float(value):
        return text
    lines[threshold_at] = _THRESHOLD.sub(rf"\g<1>{value}", line)
    lines[version_at] = _VERSION.sub(lambda found: f"{found[1]}{int(found[2]) + 1}", lines[version_at])
    return "".join(lines)


def require_documents(value: Any) -> Any:
    """Callback of a parameter that names policy documents: as `require_path`; one named as a template says so."""
    try:
        return require_path(value)
    except ExitError as stop:
        missing = next(each for each in (value if isinstance(value, list | tuple) else [value]) if not each.exists())
        if missing.stem not in TEMPLATES:
            raise
        raise ExitError(stop.code, f"{stop}; `skerry policy new {missing.stem}` writes that template") from None


def render_template(name: str, on: date | None = None) -> str:
    """A shipped template as of today: `issued` and `expires` are moved, all else is as it stands in the package.

    `on`: another day than today. Raises ExitError(NOT_FOUND) for an unknown name.
    """
    day = on or datetime.now(UTC).date()
    return "".join(_move_dates(line, day) for line in read_shipped(name).splitlines(keepends=True))


def read_shipped(name: str, ending: str = ".toml") -> str:
    """A file of `policies/templates` as it is. ExitError(NOT_FOUND) for an unknown name."""
    if name not in TEMPLATES:
        raise ExitError(ExitCode.NOT_FOUND, f"{name[:40]!r} is no template; there are {', '.join(TEMPLATES)}")
    return resources.files("policies").joinpath("templates", name + ending).read_text(encoding="utf-8")


def _move_dates(line: str, day: date) -> str:
    """Move the two dates at the start of a line; a far `expires` (the demo's) stays."""
    if line.startswith(_ISSUED):
        return _ISSUED + day.isoformat() + line[len(_ISSUED) + _DATE_CHARS :]
    if line.startswith(_EXPIRES) and not line.startswith(f"{_EXPIRES}2099"):
        return _EXPIRES + (day + TEMPLATE_LIFETIME).isoformat() + line[len(_EXPIRES) + _DATE_CHARS :]
    return line
