"""Router between two language models: folds, cross-fitted gains, and routed outcomes."""

import numpy as np
import pytest

from benchmarks.forge.parts.router import (
    PromptRouter,
    RecordedPrompts,
    cross_fit_gains,
    describe_prompt,
    draw_folds,
    group_twins,
    route_prompts,
)
from models.forge.evaluation.deferral import compute_frontier


def replay(count=240, seed=0):
    """Sums are hard for the weak model alone, riddles for both, capitals for none; the text says which is which."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, count)
    subjects = ("add the numbers", "solve the riddle of", "name the capital near")
    prompts = [f"Please {subjects[kind]} {rng.integers(10**6)}\nA. {i}\nB. no" for i, kind in enumerate(kinds)]
    return RecordedPrompts(prompts, kinds == 2, kinds != 1)


def test_prompts_from_which_the_strong_model_gains_are_asked_first():
    known = replay()
    line = compute_frontier(route_prompts(cross_fit_gains(known), known))
    gaining = known.gain.mean()
    assert line.cpt80 == pytest.approx(0.8 * gaining, abs=0.03)
    assert line.apgr > 0.8


def test_where_both_models_fail_asking_gains_nothing_and_is_not_advised():
    known = replay()
    gains = PromptRouter(known).gains(
        ["Please solve the riddle of 7\nA. 3\nB. no", "Please add the numbers 7\nA. 3\nB. no"]
    )
    assert gains[0] < 0.3 < gains[1]


@pytest.mark.further
def test_outcomes_without_any_pattern_are_routed_no_better_than_by_lot():
    known = replay()
    rng = np.random.default_rng(1)
    noise = RecordedPrompts(known.prompts, rng.random(240) < 0.4, rng.random(240) < 0.8)
    assert abs(compute_frontier(route_prompts(cross_fit_gains(noise), noise)).apgr - 0.5) < 0.2


def test_a_prompt_and_its_twin_are_in_one_fold():
    passage = "The treaty of 1648 " * 30
    prompts = (
        [f"{passage}question {i}?" for i in range(5)] + ["What is  TWO", "what is two"] + [f"q{i}" for i in range(50)]
    )
    group, fold = group_twins(prompts), draw_folds(prompts, 5, 3)
    assert len(set(group[:5])) == 1
    assert len(set(fold[:5])) == 1
    assert len(set(group)) == 52
    assert set(fold) == set(range(5))


@pytest.mark.further
def test_the_same_seed_routes_the_same():
    known = replay(120)
    assert cross_fit_gains(known, 3, 5).tolist() == cross_fit_gains(known, 3, 5).tolist()


@pytest.mark.parametrize("prompt", ["", "\nA.", "A. B. C. D.", "😀 $x_1$\nA. 1\nB. -2.5%"])
def test_any_text_has_a_shape(prompt):
    assert np.isfinite(describe_prompt(prompt)).all()
    assert len(describe_prompt(prompt)) == len(describe_prompt("other"))
