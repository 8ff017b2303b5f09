"""What the ranks of one stage do together, on torch.distributed: gloo on CPUs, nccl on graphics cards.

Rule: every collective is counted, and none waits longer than the group's explicit timeout.
"""

from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor


class GroupMeet:
    """`models.sharding.program.Meet` among the ranks of `group`."""

    def __init__(self, group: dist.ProcessGroup, at: int, ways: int) -> None:
        self._group = group
        self._at = at
        self._ways = ways
        self.counts: Counter[str] = Counter()

    def reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks, in place where that can be."""
        self.counts["all_reduce"] += 1
        whole = x.contiguous()
        dist.all_reduce(whole, group=self._group)
        return whole

    def gather(self, x: Tensor, axis: int) -> Tensor:
        self.counts["all_gather"] += 1
        own = x.contiguous()
        parts = [torch.empty_like(own) for _ in range(self._ways)]
        dist.all_gather(parts, own, group=self._group)
        return torch.cat(parts, axis)

    def take(self, x: Tensor, axis: int) -> Tensor:
        """The part of this rank of what all have: nobody is asked."""
        each = x.shape[axis] // self._ways
        return x.narrow(axis, self._at * each, each).contiguous()
