"""Policy probes: test cases shipped beside a policy, each with the decision that is expected. Pure.

A closed TOML format: `[given]` facts for all cases, then `[[case]]` tables with a name, their own facts and `expect`.
Rule: every error names its case.
"""

from typing import Any

import msgspec

from policies.analysis.explain import Explanation, explain_sample
from policies.analysis.facts import FactsError, SampleFacts, parse_facts
from policies.model.policy import Policy
from wire.toml import parse_toml

MAX_PROBES = 10_000


class ProbesError(Exception):
    """A probes file cannot be used: one line that names the case."""


class ProbeExpectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Expected decision; None = not asked. `fields` as a set; `hubs`, `regions`, `rules` in their order."""

    leaves: bool
    why: str | None = None
    fields: tuple[str, ...] | None = None
    hubs: tuple[str, ...] | None = None
    regions: tuple[str, ...] | None = None
    rules: tuple[str, ...] | None = None


class Probe(msgspec.Struct, frozen=True):
    """One test case: the facts of a sample, and the expected decision."""

    name: str
    facts: SampleFacts
    expect: ProbeExpectation


class ProbeOutcome(msgspec.Struct, frozen=True):
    """Result of a probe. `faults`: empty = as expected; else a sentence each."""

    name: str
    faults: tuple[str, ...]
    told: Explanation


class _CaseTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    expect: ProbeExpectation
    given: dict[str, Any] = {}
    unknown: tuple[str, ...] = ()


class _ProbesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    case: tuple[_CaseTable, ...]
    given: dict[str, Any] = {}


def parse_probes(text: str) -> tuple[Probe, ...]:
    """Parse a probes file (TOML). Raises ProbesError, one line, for anything that is none."""
    try:
        file = msgspec.convert(parse_toml(text), _ProbesFile)
    except msgspec.ValidationError as error:
        raise ProbesError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise ProbesError(f"not TOML: {' '.join(str(error).split())[:200]}") from None
    if not 0 < len(file.case) <= MAX_PROBES:
        raise ProbesError(f"{len(file.case)} cases; there must be 1 to {MAX_PROBES}")
    return tuple(_build_probe(file.given, case) for case in file.case)


def _build_probe(given: dict[str, Any], case: _CaseTable) -> Probe:
    """Build a probe: the common facts, overridden by the case's, without those it names unknown."""
    known = {key: value for key, value in {**given, **case.given}.items() if key not in case.unknown}
    try:
        return Probe(case.name, parse_facts(known), case.expect)
    except FactsError as error:
        raise ProbesError(f"case {case.name!r}: {error}") from None


def run_probe(policy: Policy, probe: Probe, day: int) -> ProbeOutcome:
    """Run one probe against a policy on `day` (since 1970, UTC) and compare with what is expected."""
    told = explain_sample(policy, probe.facts, day)
    return ProbeOutcome(probe.name, tuple(_compare_outcome(probe.expect, told)), told)


def _compare_outcome(expect: ProbeExpectation, told: Explanation) -> list[str]:
    """Compare the explanation with what is expected; a sentence for each difference."""
    came = {
        "leaves": told.leaves,
        "why": told.why,
        "fields": tuple(sorted(told.fields)),
        "hubs": tuple(hub.name for hub in told.hubs),
        "regions": tuple(dict.fromkeys(hub.region for hub in told.hubs)),
        "rules": told.rules,
    }
    wanted = msgspec.structs.asdict(expect)
    wanted["fields"] = None if expect.fields is None else tuple(sorted(expect.fields))
    return [
        f"{key} should be {_format_value(value)}, is {_format_value(came[key])}"
        for key, value in wanted.items()
        if value is not None and value != came[key]
    ]


def _format_value(value: object) -> str:
    """Text of a value in a fault."""
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value) or "-"
