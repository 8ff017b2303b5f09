"""A test draws the same numbers in whatever order tests run."""

import numpy as np
import pytest

RNG = np.random.default_rng(1)
FIRST = np.random.default_rng(1).random()


@pytest.mark.parametrize("turn", [1, 2])
def test_a_generator_of_a_module_begins_anew_for_each_test(turn):
    assert RNG.random() == FIRST, turn
