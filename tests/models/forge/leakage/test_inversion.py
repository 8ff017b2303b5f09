"""Inversion attack on a small digits network with 4,096 pairs: with and without a policy's defences."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from models.bundle.measurements import LeakageRow, LeakKind
from models.forge.data import digits
from models.forge.leakage import inversion
from models.forge.leakage.effort import QUICK
from models.forge.leakage.measure import POWER
from models.forge.leakage.remeasure import transform_codes
from models.forge.partition.code_levels import fit_range
from models.forge.training.determinism import deterministic_torch
from models.runtime import chain
from models.runtime.chain import FeatureChain, TransformStep
from models.zoo.digits import DigitsNet
from policies.decisions.leakage import check_limits
from policies.model.policy import LeakageLimits
from policies.model.reasons import DecisionReason, Denied
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

PAIRS, TESTS = 4096, 300
EFFORT = QUICK._replace(pairs=PAIRS, tests=TESTS, steps=100)
LIMIT = 0.6  # SSIM; knowing the digit alone gives about as much
LEVELS = 16
DEEP = FieldSpec("features", TensorDType.UINT8, (48, 4, 4), 0.0, LEVELS - 1.0, SensitivityLevel.P2, "features")
LEAVES = (TransformStep("pool", step=4), TransformStep("noise", step=4.0))
RNG = np.random.default_rng(110)


def pictures(count: int) -> np.ndarray:
    """Digits, each moved by at most one pixel: 1,797 originals are fewer than the attacker may have."""
    x = np.concatenate([part()[0] for part in (digits.load_training, digits.load_calibration, digits.load_heldout)])
    at, moves = RNG.integers(0, len(x), count), RNG.integers(-1, 2, (count, 2))
    return np.stack([np.roll(x[i], tuple(move), (-2, -1)) for i, move in zip(at, moves, strict=True)]).astype("float32")


def trained() -> DigitsNet:
    x, y = (torch.from_numpy(each) for each in digits.load_training())
    with deterministic_torch(110):
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
        codes = fit_range(deep, LEVELS).quantise(deep).numpy()
    return x, early.numpy(), codes.astype(np.uint8)


def row(codes: Sequence[np.ndarray], x: np.ndarray, steps: tuple[TransformStep, ...]) -> LeakageRow:
    """Leakage row of one chain, as a bundle states it."""
    truth = inversion.prepare_samples(x, EFFORT)
    assert len(truth.train) == PAIRS
    found = inversion.invert_codes(truth, codes, EFFORT)
    name = chain.digest_chain("late.1", "pack4", [FeatureChain(DEEP, steps)])
    score, upper = round(found.score.value, 4), round(found.score.high, 4)
    return LeakageRow(name, LeakKind.RECONSTRUCTION, "", found.attack, truth.metric, PAIRS, score, upper, 0.0, 1.0)


@pytest.mark.further
def test_what_leaves_is_rebuilt_no_better_than_the_stated_limit_and_early_features_are(seen):
    x, early, deep = seen
    bare = row((early,), x, ())
    assert bare.score > POWER  # the attack works where nothing is hidden
    left = row((transform_codes(deep, LEAVES, DEEP),), x, LEAVES)
    assert left.upper95 <= LIMIT
    privacy = LeakageLimits(LIMIT, "ssim")
    assert check_limits(privacy, (left,)) is None
    denied = check_limits(privacy, (bare,))
    assert isinstance(denied, Denied)
    assert denied.why is DecisionReason.DENIED_LEAKAGE


@pytest.mark.further
def test_a_measurement_of_one_chain_says_nothing_of_another(seen):
    _, _, deep = seen
    names = {
        chain.digest_chain("late.1", "pack4", [FeatureChain(DEEP, steps)])
        for steps in ((), LEAVES, LEAVES[:1], LEAVES[1:])
    }
    assert len(names) == 4
    assert not np.array_equal(transform_codes(deep[:4], LEAVES, DEEP), deep[:4])
