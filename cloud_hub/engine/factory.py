"""Engine factory: opens a bundle folder as the right kind of engine, and places a large model on several devices.

Rule: one process, unless the bundle's plan, the hub's options or the memory of one device require more.
"""

import os
from pathlib import Path
from typing import NamedTuple

import torch

from cloud_hub.engine.base import Engine
from cloud_hub.engine.types import Means, asked, card_of_bundle, spreads
from models.bundle.bundle import Bundle, open_apart, open_bundle, peek
from models.bundle.manifest import BundleError, Manifest
from models.graph.format import HubForm, from_bytes
from models.sharding.program import Shape
from models.sharding.sizes import Sizes, fullest, ranks, sizes
from policies.serving.placement import GIB, MIB, Devices, Need, NoPlace, Placement, candidates, place


def open_engine(path: Path, means: Means) -> Engine:
    """Build and start an engine of a bundle folder; not warmed up.

    BundleError or EngineError, one line, in bounded time.
    """
    engine = _built(path, means)
    engine.start()
    return engine


def _built(path: Path, means: Means) -> Engine:
    manifest = peek(path)
    if manifest.hub.whole:
        from cloud_hub.engine.onnx import OnnxEngine  # noqa: PLC0415 - only for ONNX bundles

        return OnnxEngine(open_bundle(path), means.max_batch, means.threads)
    from cloud_hub.engine.torch import LocalEngine  # noqa: PLC0415 - torch takes seconds: not for `skerry hub invite`

    sharded = _sharded(path, manifest, means) if spreads(manifest, means) else None
    return sharded or LocalEngine(open_bundle(path), means.max_batch, means.threads)


def _sharded(path: Path, manifest: Manifest, means: Means) -> Engine | None:
    """Build a sharded engine if the model needs several devices, else None."""
    from cloud_hub.engine.torch import device_for  # noqa: PLC0415

    kind = device_for(manifest).type
    bundle = open_apart(path)
    try:
        form = form_of(bundle.read(manifest.hub.graph), manifest)
        decision = _settled(size_up(form, manifest, means, devices_of(means, kind)).decision, manifest)
        if decision.devices > 1:
            return _spread(bundle, form, decision, (means, kind))
    except BundleError:
        bundle.close()
        raise
    bundle.close()
    return None


def _settled(decision: Placement | NoPlace, manifest: Manifest) -> Placement:
    if isinstance(decision, NoPlace):
        raise BundleError(f"{manifest.model}: {decision.why}")
    return decision


def _spread(bundle: Bundle, form: HubForm, decision: Placement, told: tuple[Means, str]) -> Engine:
    from cloud_hub.engine.bundle import ladder  # noqa: PLC0415
    from cloud_hub.engine.sharded.engine import Limits, ShardedEngine  # noqa: PLC0415
    from cloud_hub.engine.sharded.group import Recipe  # noqa: PLC0415
    from cloud_hub.engine.sharded.protocol import Charter  # noqa: PLC0415
    from models.graph.hub_model import check_blank  # noqa: PLC0415

    means, kind = told
    manifest, need = bundle.manifest, decision.need
    card = card_of_bundle(bundle, means.max_batch)
    check_blank(form, manifest, ladder(means.max_batch))
    recipes = []
    for replica in range(decision.replicas):
        device = f"cuda:{replica * need.ranks}" if kind == "cuda" else kind
        backend = "nccl" if kind == "cuda" else "gloo"
        charter = Charter(
            1, 0, tensor=need.tensor, pipeline=need.pipeline, store="", backend=backend, device=device,
            timeout_s=means.ready_s, threads=means.threads,
        )  # fmt: skip
        files = tuple(bundle.files[name] for name in manifest.hub.weights)
        recipes.append(Recipe(manifest.model, charter, bundle.read(manifest.hub.graph), files))
    return ShardedEngine(bundle, card, recipes, Limits(ready_s=means.ready_s))


_CARD_PROCESS = GIB  # memory that CUDA takes on a graphics card per process
_PROCESS = 256 * MIB


class Sized(NamedTuple):
    """Sizes of a model, the needs of each way to split it, the devices there are, and the placement chosen."""

    sizes: Sizes
    needs: tuple[Need, ...]
    devices: Devices
    decision: Placement | NoPlace


def devices_of(means: Means, kind: str) -> Devices:
    """The devices to use: as many as configured, else all graphics cards or all CPU cores. `kind`: "cuda" or "cpu"."""
    if kind == "cuda":
        free, _ = torch.cuda.mem_get_info()
        there = torch.cuda.device_count()
        count = min(means.devices or there, there)
        return Devices(count, means.memory_bytes or int(free), _CARD_PROCESS)
    return Devices(means.devices or os.cpu_count() or 1, means.memory_bytes, _PROCESS)


def size_up(form: HubForm, manifest: Manifest, means: Means, devices: Devices) -> Sized:
    """Measure the model and choose its placement on `devices`. BundleError if its graphs do not fit together."""
    wanted = asked(manifest, means)
    pairs = [pair for pair in candidates(devices.count) if wanted.allows(*pair)]
    needs = tuple(_need(form, tensor, stages, means.max_batch) for tensor, stages in pairs)
    return Sized(sizes(form, means.max_batch), needs, devices, place(needs, devices, wanted))


def form_of(data: bytes, manifest: Manifest) -> HubForm:
    """Parse the hub graphs of a bundle. BundleError that names the model if they are malformed."""
    try:
        return from_bytes(data)
    except BundleError as error:
        raise BundleError(f"{manifest.model}: {error}") from None


def _need(form: HubForm, tensor: int, stages: int, batch: int) -> Need:
    rank = fullest(ranks(form, Shape(tensor, stages), batch))
    return Need(tensor, stages, rank.weight_bytes, rank.activation_bytes)
