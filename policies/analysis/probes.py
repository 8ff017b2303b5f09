"""Policy probes: test cases shipped beside a policy, each with the decision that is expected. Pure.

A closed TOML format: `[given]` facts for all cases, then `[[case]]` tables with a name, their own facts and `expect`.
Rule: every error names its case.
"""

import tomllib
from typing import Any

import msgspec

from policies.analysis.explain import Explanation, explain_sample
from policies.analysis.facts import Facts, FactsError, facts_of
from policies.model.policy import Policy

MAX_CASES = 10_000


class ProbesError(Exception):
    """A probes file cannot be used: one line that names the case."""


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    facts: Facts
    expect: Expect


class Outcome(msgspec.Struct, frozen=True):
    """Result of a probe. `faults`: empty = as expected; else a sentence each."""

    name: str
    faults: tuple[str, ...]
    told: Explanation


class _Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    expect: Expect
    given: dict[str, Any] = {}
    unknown: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    case: tuple[_Case, ...]
    given: dict[str, Any] = {}


def parse_probes(text: str) -> tuple[Probe, ...]:
    """Parse a probes file (TOML). Raises ProbesError, one line, for anything that is none."""
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except msgspec.ValidationError as error:
        raise ProbesError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise ProbesError(f"not TOML: {' '.join(str(error).split())[:200]}") from None
    if not 0 < len(file.case) <= MAX_CASES:
        raise ProbesError(f"{len(file.case)} cases; there must be 1 to {MAX_CASES}")
    return tuple(_probe(file.given, case) for case in file.case)


def _probe(given: dict[str, Any], case: _Case) -> Probe:
    """Build a probe: the common facts, overridden by the case's, without those it names unknown."""
    known = {key: value for key, value in {**given, **case.given}.items() if key not in case.unknown}
    try:
        return Probe(case.name, facts_of(known), case.expect)
    except FactsError as error:
        raise ProbesError(f"case {case.name!r}: {error}") from None


def probed(policy: Policy, probe: Probe, day: int) -> Outcome:
    """Run one probe against a policy on `day` (since 1970, UTC) and compare with what is expected."""
    told = explain_sample(policy, probe.facts, day)
    return Outcome(probe.name, tuple(_faults(probe.expect, told)), told)


def _faults(expect: Expect, told: Explanation) -> list[str]:
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
        f"{key} should be {_shown(value)}, is {_shown(came[key])}"
        for key, value in wanted.items()
        if value is not None and value != came[key]
    ]


def _shown(value: object) -> str:
    """Text of a value in a fault."""
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value) or "-"
