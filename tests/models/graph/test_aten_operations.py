"""Tests of the allow-list of ATen operations against the installed torch."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

from models.graph.aten_operations import (
    ALLOWED_OPERATIONS,
    NO_PINNED_MEMORY,
    OPERATION_GROUPS,
    REFUSED_GROUPS,
    REQUIRED_VALUES,
    find_operation,
    parse_argument_kind,
    string_allowed,
)

RANDOM = torch.Tag.nondeterministic_seeded
BY_VALUE = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


@pytest.mark.parametrize("name", sorted(ALLOWED_OPERATIONS))
def test_an_allowed_operation_writes_nothing_and_draws_nothing(name):
    operation = find_operation(name)
    assert operation is not None
    call: Any = operation.call
    assert str(call) == name
    assert not call._schema.is_mutable
    if RANDOM in call.tags:
        assert name in REQUIRED_VALUES  # allowed only as it is at inference
    # Indexing with a mask gives as many as the mask has: the rehearsal, which sees no values, refuses that.
    assert name == "aten.index.Tensor" or not any(tag in call.tags for tag in BY_VALUE)


def test_no_operation_is_listed_twice():
    names = [name for group in OPERATION_GROUPS.values() for name in group.split()]
    assert len(set(names)) == len(names)


def list_aten_operations() -> Iterator[Any]:
    """All that torch registered: `dir(torch.ops.aten)` has only those that were used before."""
    for full_name in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full_name.partition("::")
        packet, _, overload = name.partition(".")
        if namespace == "aten":
            with suppress(AttributeError, RuntimeError):  # a few have no Python binding
                yield getattr(getattr(torch.ops.aten, packet), overload or "default")


def test_each_core_operation_of_torch_runs_or_is_refused_for_a_reason_that_is_written_down():
    core = {str(call) for call in list_aten_operations() if torch.Tag.core in call.tags}
    refused = {
        f"aten.{name if '.' in name else name + '.default'}"
        for names in REFUSED_GROUPS.values()
        for name in names.split()
    }
    assert len(core) > 150
    assert core - ALLOWED_OPERATIONS == refused


@pytest.mark.parametrize(
    "word", ["empty", "empty_like", "as_strided", "set_", "resize_", "rand", "bernoulli", "nonzero"]
)
def test_what_reads_foreign_memory_or_rolls_dice_is_not_there(word):
    assert not any(name.split(".")[1] == word for name in ALLOWED_OPERATIONS)


@pytest.mark.parametrize(
    "name", ["aten.system.default", "prim.add.Tensor", "aten.add.out", "aten", "", "aten.__class__.x"]
)
def test_a_name_reaches_nothing_but_the_table(name):
    assert find_operation(name) is None


def test_restrictions_name_arguments_that_exist():
    for name, alternatives in REQUIRED_VALUES.items():
        operation = find_operation(name)
        assert operation is not None
        names = {argument.name for argument in operation.arguments}
        assert all(wish.keys() <= names for wish in alternatives)
    assert any(
        a.name in NO_PINNED_MEMORY
        for name in ALLOWED_OPERATIONS
        if (found := find_operation(name))
        for a in found.arguments
    )


def test_types_are_read_as_torch_writes_them():
    assert parse_argument_kind("Optional[List[int]]") == ("int", True, True, False)
    assert parse_argument_kind("List[Optional[Tensor]]") == ("Tensor", False, True, True)
    assert parse_argument_kind("SymInt") == ("int", False, False, False)


@pytest.mark.parametrize("text", ["reflect\n", "os.system", "", "a" * 200, "__import__"])
def test_a_string_is_a_known_word_or_an_equation(text):
    assert not string_allowed("aten.pad.default", text)
    assert not string_allowed("aten.einsum.default", text + ";")
    assert string_allowed("aten.einsum.default", "bi,ij->bj")
