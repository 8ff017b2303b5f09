"""What a run says of its faults: how many were noticed, which survive, and whether the time was enough."""

from typing import Any

import pytest

from tests.mutation.__main__ import Exit, choose_exit, report, try_all
from tests.mutation.mutants import Mutant, Span
from tests.mutation.trying import Fate, Outcome


def outcome(fate: Fate, number: int = 0) -> Outcome:
    mutant = Mutant("a.py", "f", Span(1, 0, 1), str(number), str(number + 1), at_import=False)
    return Outcome(mutant, fate, "", 1, 0.1)


@pytest.mark.parametrize(
    ("fates", "judged", "share", "code"),
    [
        ((Fate.NOTICED, Fate.NOTICED), {}, 1.0, Exit.NOTICED),
        ((Fate.NOTICED, Fate.SURVIVED), {}, 0.5, Exit.SURVIVE),
        ((Fate.NOTICED, Fate.NOT_RUN), {}, 0.5, Exit.SURVIVE),
        ((Fate.NOTICED, Fate.SURVIVED), {"a.py f: 1 -> 2": "the same"}, 1.0, Exit.NOTICED),
        ((Fate.NOTICED, Fate.NOT_TRIED), {}, 1.0, Exit.NOT_FINISHED),
        ((Fate.SURVIVED, Fate.NOT_TRIED), {}, 0.0, Exit.SURVIVE),
        ((Fate.NOT_TRIED,), {}, 1.0, Exit.NOT_FINISHED),
    ],
)
def test_a_run_fails_for_a_survivor_that_is_not_judged_and_otherwise_if_it_did_not_finish(fates, judged, share, code):
    outcomes = [outcome(fate, number) for number, fate in enumerate(fates)]
    assert report(outcomes, judged) == share
    assert choose_exit(outcomes, share, 1.0) is code


def test_what_was_not_tried_is_counted_apart(capsys):
    report([outcome(Fate.NOTICED), outcome(Fate.SURVIVED), outcome(Fate.NOT_TRIED)], {})
    said = capsys.readouterr().out
    assert "1 of 2 faults noticed (50.0%), 1 survive; 0 change nothing" in said
    assert "the time was over: 1 of 3 faults were not tried" in said


def test_no_fault_is_begun_once_the_time_is_over():
    mutants = [outcome(Fate.NOTICED, number).mutant for number in range(3)]
    nothing: Any = None
    tried = try_all(mutants, nothing, [nothing], end_s=0.0)
    assert [each.fate for each in tried] == [Fate.NOT_TRIED] * 3
