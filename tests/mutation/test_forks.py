"""A fault is planted into the functions of a running process: they do as the changed text says."""

import gc
import importlib
import sys

import pytest

from tests.mutation.forks import replace_code

CODE = """
from functools import wraps

def logged(function):
    @wraps(function)
    def call(*values):
        return function(*values)
    return call

@logged
def decide(value):
    return value > 3

class Counter:
    def __init__(self, most):
        self.most = most

    @property
    def doubled(self):
        return max(self.most
                   + self.most, 0)

    def later(self):
        return lambda: self.most + 1
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "planted", raising=False)
    return importlib.import_module("planted")


@pytest.mark.parametrize(
    ("before", "after", "seen"),
    [
        ("value > 3", "value >= 3", (True, 4, 3)),
        ("self.most\n                   + self.most", "self.most", (False, 2, 3)),
        ("self.most + 1", "self.most - 1", (False, 4, 1)),
    ],
)
def test_functions_behind_decorators_properties_and_below_a_change_of_lines_do_as_the_changed_text_says(
    module, before, after, seen
):
    counter = module.Counter(2)
    assert replace_code(module.__file__, CODE, CODE.replace(before, after))
    assert (module.decide(3), counter.doubled, counter.later()()) == seen


def test_a_fault_that_changes_what_there_is_to_call_is_left_to_a_process_of_its_own(module):
    assert not replace_code(module.__file__, CODE, CODE.replace("lambda: self.most + 1", "None"))
    assert module.Counter(2).later()() == 3


def test_objects_that_the_collector_passes_over_are_passed_over_afterwards_too(module):
    frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        assert replace_code(module.__file__, CODE, CODE.replace("value > 3", "value >= 3"))
        assert gc.get_freeze_count() >= before
        assert module.decide(3)
    finally:
        if not frozen:
            gc.unfreeze()
