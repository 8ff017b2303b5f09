"""How much `make test` tries of what `make heavy` tries all of: random examples, and cases of one kind.

A property test tries an eighth of its full count, unless `SKERRY_EXAMPLES` says otherwise.

`make heavy` sets `SKERRY_EXAMPLES=full`; a number is taken as it is. Cases marked `further` are left to `make heavy`.
"""

import os
from collections.abc import Callable, Collection, Iterable

import pytest
from _pytest.mark.structures import ParameterSet

SetTimes = Callable[..., None]  # the fixture `set_times`: a module, and numbers of it by their names
SHARE = 8
WANTED = os.environ.get("SKERRY_EXAMPLES", "")


def count_examples(full: int) -> int:
    """Cases that a property test of `full` cases tries in this run, at least one."""
    if WANTED == "full":
        return full
    return int(WANTED) if WANTED else max(1, full // SHARE)


def mark_further(cases: Iterable[object], first: Collection[object]) -> list[ParameterSet]:
    """Parameters of a test: those not among `first` are left to `make heavy`."""
    return [pytest.param(case, marks=[] if case in first else [pytest.mark.further]) for case in cases]


def further(*case: object) -> ParameterSet:
    """A case of a test, of one parameter or several, that is left to `make heavy`."""
    return pytest.param(*case, marks=pytest.mark.further)
