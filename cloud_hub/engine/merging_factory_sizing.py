"""How a bundle is spread over the devices a hub has: its sizes, held against what there is, and what was decided."""

import os
from typing import NamedTuple

import torch

from cloud_hub.engine.merging_types_means import Means, asked
from models.bundle.manifest import BundleError, Manifest
from models.graph.format import HubForm, from_bytes
from models.sharding.program import Shape
from models.sharding.sizes import Sizes, fullest, ranks, sizes
from policies.serving.placement import GIB, MIB, Devices, Need, NoPlace, Placement, candidates, place

_CARD_PROCESS = GIB  # a graphics card's own share of every process that uses it
_PROCESS = 256 * MIB


class Sized(NamedTuple):
    sizes: Sizes
    needs: tuple[Need, ...]
    devices: Devices
    decision: Placement | NoPlace


def devices_of(means: Means, kind: str) -> Devices:
    """As many as was said; else all graphics cards, or all cores."""
    if kind == "cuda":
        free, _ = torch.cuda.mem_get_info()
        there = torch.cuda.device_count()
        count = min(means.devices or there, there)
        return Devices(count, means.memory_bytes or int(free), _CARD_PROCESS)
    return Devices(means.devices or os.cpu_count() or 1, means.memory_bytes, _PROCESS)


def size_up(form: HubForm, manifest: Manifest, means: Means, devices: Devices) -> Sized:
    """BundleError if the graphs do not fit together."""
    wanted = asked(manifest, means)
    pairs = [pair for pair in candidates(devices.count) if wanted.allows(*pair)]
    needs = tuple(_need(form, tensor, stages, means.max_batch) for tensor, stages in pairs)
    return Sized(sizes(form, means.max_batch), needs, devices, place(needs, devices, wanted))


def form_of(data: bytes, manifest: Manifest) -> HubForm:
    try:
        return from_bytes(data)
    except BundleError as error:
        raise BundleError(f"{manifest.model}: {error}") from None


def _need(form: HubForm, tensor: int, stages: int, batch: int) -> Need:
    rank = fullest(ranks(form, Shape(tensor, stages), batch))
    return Need(tensor, stages, rank.weight_bytes, rank.activation_bytes)
