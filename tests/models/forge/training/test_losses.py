"""Training losses: a sample counts as much as its weight says, for labels and for values."""

import pytest
import torch

from models.forge.training.losses import LossConfig, distillation_loss


@pytest.mark.parametrize("labels", [3, 0], ids=["labels", "values"])
def test_a_sample_of_weight_zero_counts_nothing_and_equal_weights_change_nothing(labels):
    chance = torch.Generator().manual_seed(0)
    outputs, teacher = (torch.randn(8, max(1, labels), generator=chance) for _ in range(2))
    y = torch.arange(8) % 3 if labels else torch.randn(8, generator=chance)
    aim = LossConfig(labels)
    plain = distillation_loss(outputs, teacher, y, aim)
    assert torch.allclose(distillation_loss(outputs, teacher, y, aim, torch.full((8,), 0.3)), plain)
    first = torch.tensor([1.0] * 5 + [0.0] * 3)
    assert torch.allclose(
        distillation_loss(outputs, teacher, y, aim, first),
        distillation_loss(outputs[:5], teacher[:5], y[:5], aim),
    )


def test_samples_of_no_label_follow_the_teacher_alone():
    outputs, teacher = torch.zeros(4, 2), torch.tensor([[3.0, 0.0]] * 4)
    unknown = distillation_loss(outputs, teacher, torch.full((4,), -1), LossConfig(2, hard=5.0))
    assert torch.allclose(unknown, distillation_loss(outputs, teacher, torch.zeros(4).long(), LossConfig(2, hard=0.0)))
