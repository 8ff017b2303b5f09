"""Leakage penalty for teaching codes: the bits that codes tell of a sample beyond its label.

Rule: what the label needs costs nothing; all else that codes tell costs its bits, so an encoder keeps only what the
hub's answer gains by. A penalty proves nothing: what codes give away is measured by attacks on the finished path.

The conditional entropy bottleneck (Fischer 2020, "The Conditional Entropy Bottleneck", Entropy 22(9)): of codes C made
of a sample X with label Y, I(X; C | Y) is at most the sum over codes of ½ log2(1 + 12 v), where v is the variance of a
code within its label and 1/12 that of rounding to whole numbers (the capacity of a Gaussian channel). It needs no
adversary. One that learns in turns with the encoder (Li et al. 2019, DeepObfuscator, arXiv 1909.04126) was tried first:
codes learned to run away from it, not to tell less.
"""

import torch
from torch import Tensor
from torch.nn import functional

_ROUNDING = 12.0  # 1 / variance of the error of rounding to whole numbers
_LEAST_FREE = 8  # samples beyond one a label: with fewer, no variance within labels can be told
_TENTHS = 10


def penalty_share(epoch: int, epochs: int) -> float:
    """Share of the penalty that counts in an epoch: it rises over the first half, for codes first have to tell much."""
    return min(1.0, 2 * (epoch + 1) / max(1, epochs))


class LeakagePenalty:
    """Loss term: bits that one code tells of a sample beyond its label, on average over the codes, times `weight`.

    `labels`: number of labels; 0 for a regressor, whose values are taken by tenths of their batch.
    """

    def __init__(self, weight: float, labels: int) -> None:
        if not weight >= 0:
            raise ValueError(f"a weight of {weight:g} is below 0")
        self.weight, self._labels = weight, labels

    def __call__(self, codes: Tensor, y: Tensor) -> Tensor:
        """The term for a batch: `codes` `[n, ...]`, whole numbers as floats that carry gradients; `y` `[n]`."""
        return self.weight * self.bits_beyond_label(codes, y)

    def bits_beyond_label(self, codes: Tensor, y: Tensor) -> Tensor:
        """Bound on the bits that one code tells beyond the label, the mean over all codes."""
        flat = codes.flatten(1).float()
        members = functional.one_hot(self._group_samples(y)).to(flat.dtype)
        counts = members.sum(0)
        free = len(flat) - int((counts > 0).sum())
        if free < _LEAST_FREE:
            members, counts, free = torch.ones_like(flat[:, :1]), torch.tensor([float(len(flat))]), len(flat) - 1
        within = flat - members @ ((members.T @ flat) / counts.clamp(min=1)[:, None])
        variance = within.square().sum(0) / max(1, free)
        bits: Tensor = 0.5 * torch.log2(1 + _ROUNDING * variance).mean()
        return bits

    def _group_samples(self, y: Tensor) -> Tensor:
        """Number of the group `[n]` that each sample's label or value stands for; out of scope is a group too."""
        if self._labels:
            numbers: Tensor = torch.unique(y, return_inverse=True)[1]
            return numbers
        edges = torch.quantile(y.float(), torch.arange(1, _TENTHS, dtype=torch.float32) / _TENTHS)
        return torch.searchsorted(edges, y.float())
