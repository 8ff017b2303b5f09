"""Inversion attack on a small digits network with 4,096 pairs: with and without a policy's defences."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from models.bundle.measurements import Leakage, LeakKind
from models.forge.data import digits
from models.forge.leakage import inversion
from models.forge.leakage.inversion import QUICK
from models.forge.leakage.measure import POWER
from models.forge.leakage.remeasure import changed
from models.forge.partition.code_levels import fitted
from models.forge.training.determinism import repeatable
from models.runtime import chain
from models.runtime.chain import Field, Step
from models.zoo.digits import DigitsNet
from policies.decisions.leakage import within
from policies.model.policy import Privacy
from policies.model.reasons import Denied, Why
from wire.protocol.messages import DType, FieldSpec, Level

PAIRS, TESTS = 4096, 300
EFFORT = QUICK._replace(pairs=PAIRS, tests=TESTS, steps=100)
LIMIT = 0.6  # SSIM; knowing the digit alone gives about as much
LEVELS = 16
DEEP = FieldSpec("features", DType.UINT8, (48, 4, 4), 0.0, LEVELS - 1.0, Level.P2, "features")
LEAVES = (Step("pool", step=4), Step("noise", step=4.0))
RNG = np.random.default_rng(110)


def pictures(count: int) -> np.ndarray:
    """Digits, each moved by at most one pixel: 1,797 originals are fewer than the attacker may have."""
    x = np.concatenate([part()[0] for part in (digits.training, digits.calibration, digits.heldout)])
    at, moves = RNG.integers(0, len(x), count), RNG.integers(-1, 2, (count, 2))
    return np.stack([np.roll(x[i], tuple(move), (-2, -1)) for i, move in zip(at, moves, strict=True)]).astype("float32")


def trained() -> DigitsNet:
    x, y = (torch.from_numpy(each) for each in digits.training())
    with repeatable(110):
        net = DigitsNet()
        optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
        for _ in range(4):
            for part in torch.randperm(len(x)).split(128):
                optimiser.zero_grad()
                cross_entropy(net(x[part]), y[part]).backward()
                optimiser.step()
    return net.eval()


@pytest.fixture(scope="module")
def seen() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pictures, what the first convolution makes of them, and what the third makes, in 16 levels."""
    net, x = trained(), pictures(PAIRS + TESTS)
    with torch.inference_mode():
        early = net.early[:2](torch.from_numpy(x))
        deep = net.late[:2](net.early[2:](early))
        codes = fitted(deep, LEVELS).codes(deep).numpy()
    return x, early.numpy(), codes.astype(np.uint8)


def row(codes: Sequence[np.ndarray], x: np.ndarray, steps: tuple[Step, ...]) -> Leakage:
    """Leakage row of one chain, as a bundle states it."""
    truth = inversion.truth_of(x, EFFORT)
    assert len(truth.train) == PAIRS
    found = inversion.invert(truth, codes, EFFORT)
    name = chain.digest("late.1", "pack4", [Field(DEEP, steps)])
    score, upper = round(found.score.value, 4), round(found.score.high, 4)
    return Leakage(name, LeakKind.RECONSTRUCTION, "", found.attack, truth.metric, PAIRS, score, upper, 0.0, 1.0)


def test_case_110_what_leaves_is_rebuilt_no_better_than_the_stated_limit_and_early_features_are(seen):
    x, early, deep = seen
    bare = row((early,), x, ())
    assert bare.score > POWER  # the attack works where nothing is hidden
    left = row((changed(deep, LEAVES, DEEP),), x, LEAVES)
    assert left.upper95 <= LIMIT
    privacy = Privacy(LIMIT, "ssim")
    assert within(privacy, (left,)) is None
    denied = within(privacy, (bare,))
    assert isinstance(denied, Denied)
    assert denied.why is Why.DENIED_LEAKAGE


def test_case_110_a_measurement_of_one_chain_says_nothing_of_another(seen):
    _, _, deep = seen
    names = {chain.digest("late.1", "pack4", [Field(DEEP, steps)]) for steps in ((), LEAVES, LEAVES[:1], LEAVES[1:])}
    assert len(names) == 4
    assert not np.array_equal(changed(deep[:4], LEAVES, DEEP), deep[:4])
