"""What a hub has for engines, and how it wants models spread over it."""

import msgspec

from models.bundle.manifest import Manifest
from policies.serving.placement import Asked


class Means(msgspec.Struct, frozen=True):
    """What this hub has for engines, and how it wants them spread; 0 = not said.

    `max_batch`: items at most; `threads`: of torch, in each process; `ready_s`: for an engine to get ready.
    """

    max_batch: int = 32
    threads: int = 1
    devices: int = 0
    memory_bytes: int = 0
    tensor: int = 0
    pipeline: int = 0
    replicas: int = 0
    ready_s: float = 60.0


def asked(manifest: Manifest, means: Means) -> Asked:
    """The hub's own words count more than the bundle's."""
    plan = manifest.parallel
    replicas = means.replicas or plan.replicas
    return Asked(means.tensor or plan.tensor, means.pipeline or plan.pipeline, replicas or (0 if means.devices else 1))


def spreads(manifest: Manifest, means: Means) -> bool:
    """Whether one process is not settled from the start."""
    wanted = asked(manifest, means)
    several = max(wanted.tensor, wanted.pipeline, wanted.replicas) > 1
    return several or means.devices > 1 or means.memory_bytes > 0
