"""Samples for gate and novelty whose trunk tells what the logits hide."""

import torch

from models.forge.training.gate import GateSamples

COUNT = 3000


def make_gate_samples(*, telling: bool, count: int = COUNT, seed: int = 0) -> GateSamples:
    """Three labels; one number of the trunk tells where the device errs although its logits look sure (`telling`)."""
    chance = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (count,), generator=chance)
    trap = torch.rand(count, generator=chance) < 0.2
    wrong = trap & (torch.rand(count, generator=chance) < 0.8)
    named = torch.where(wrong, (y + 1) % 3, y)
    logits = torch.nn.functional.one_hot(named, 3) * 4.0 + torch.randn(count, 3, generator=chance)
    summary = torch.stack([trap.float() if telling else torch.zeros(count), torch.randn(count, generator=chance)], 1)
    return GateSamples(logits, summary, torch.nn.functional.one_hot(y, 3).float(), y)
