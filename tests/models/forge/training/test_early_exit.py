"""Early exit: works on any encoder's trunk, with as many outputs as the task needs."""

import pytest
import torch
from torch import nn

from models.forge.training.early_exit import EarlyExit, RegressionExit, ScaledRegressor


@pytest.mark.parametrize("hidden", [(6,), (6, 7, 7), (6, 2, 2), (6, 1, 33), (6, 1, 1), (6, 16, 16)], ids=str)
def test_an_exit_reads_any_trunk(hidden):
    assert EarlyExit(hidden, 5).eval()(torch.randn(3, *hidden)).shape == (3, 5)


def test_an_exit_of_a_large_trunk_stays_small():
    assert sum(p.numel() for p in EarlyExit((24, 32, 32), 10).parameters()) < 25_000


def test_a_regressors_exit_speaks_in_the_targets_own_units():
    inner = nn.Linear(2, 2)
    nn.init.zeros_(inner.weight)
    nn.init.zeros_(inner.bias)
    value, log_scale = RegressionExit(inner, mean=70.0, spread=20.0)(torch.randn(4, 2)).unbind(1)
    assert torch.allclose(value, torch.tensor(70.0))
    assert torch.allclose(log_scale.exp(), torch.tensor(20.0))


def test_an_exits_error_scale_is_bounded_however_odd_the_sample():
    inner = nn.Linear(2, 2)
    log_scale = RegressionExit(inner, mean=0.0, spread=1.0)(torch.tensor([[1e9, -1e9], [-1e9, 1e9]]))[:, 1]
    assert torch.isfinite(log_scale.exp()).all()
    assert (log_scale.exp() > 0).all()


def test_a_users_regressor_is_given_a_scale_of_its_error():
    flat = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))  # answers [n], not [n, 1]
    assert ScaledRegressor(flat, 0.5)(torch.randn(4, 3)).shape == (4, 2)
