"""Hubs on versions of two parts: they answer as the old bundle does, and what does not fit together is never served."""

import json
import shutil
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from cloud_hub.engine.base import EngineError
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.engine import ShardedEngine
from cloud_hub.engine.torch import TorchEngine
from cloud_hub.engine.types import EngineOptions, WorkItem
from models.bundle.bundle import Bundle
from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import HUB_FILE, BundleError
from models.bundle.version import rewrite_version, write_version
from tests.cloud_hub.doubles.gangs import gang_bundle
from tests.examples import further

ONE = EngineOptions(max_batch=4)
TWO = EngineOptions(max_batch=4, tensor=2, devices=2, replicas=1)
TWO_RANKS = pytest.param(TWO, marks=pytest.mark.further)  # each starts a fork server
BOTH = pytest.mark.parametrize("means", [ONE, TWO_RANKS], ids=["one process", "two ranks"])


def split(folder: Path, version: int = 1) -> Bundle:
    old = gang_bundle(folder / "old", "echo", version=version)
    return rewrite_version(old, old.manifest, folder / f"echo@{version}")


def with_weights(made: Bundle, weights: bytes) -> Bundle:
    """The same version, sound by all digests, with other weights."""
    part = open_hub_part(made.path, made.manifest)
    edge = {name: made.read_file(name) for name in made.manifest.files}
    hub: dict[str, bytes | Path] = {name: part.path / name for name in part.manifest.files}
    described = msgspec.structs.replace(part.manifest, files={})
    return write_version(made.path, made.manifest, edge, described, {**hub, HUB_FILE: weights})


def weights_of(made: Bundle) -> bytes:
    return (made.path / "hub" / HUB_FILE).read_bytes()


def questions() -> list[WorkItem]:
    chance = np.random.default_rng(4)
    return [WorkItem({"features": chance.integers(0, 16, 10).astype(np.uint8)}) for _ in range(4)]


def refusal(path: Path, means: EngineOptions) -> str:
    with pytest.raises((BundleError, EngineError)) as caught:
        open_engine(path, means)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@BOTH
def test_a_version_of_two_parts_answers_bit_by_bit_as_the_old_bundle(tmp_path, means):
    answers = []
    for path in (gang_bundle(tmp_path, "echo").path, split(tmp_path).path):
        engine = open_engine(path, means)
        try:
            assert isinstance(engine, ShardedEngine if means is TWO else TorchEngine)
            answers.append([prediction.scores for prediction in engine.infer(questions())])
        finally:
            engine.stop()
    assert answers[0] == answers[1]


def test_the_plan_of_the_hub_part_divides_the_model(tmp_path):
    made = split(tmp_path)
    part = open_hub_part(made.path, made.manifest)
    plan = msgspec.structs.replace(part.manifest.parallel, tensor=2)
    edge = {name: made.read_file(name) for name in made.manifest.files}
    hub: dict[str, bytes | Path] = {name: part.path / name for name in part.manifest.files}
    described = msgspec.structs.replace(part.manifest, parallel=plan)
    made = write_version(made.path, made.manifest, edge, described, hub)
    assert "there are 1" in refusal(made.path, EngineOptions(devices=1))


def lose_part(made: Bundle) -> None:
    shutil.rmtree(made.path / "hub")


def lose_shard(made: Bundle) -> None:
    (made.path / "hub" / HUB_FILE).unlink()


def take_another_versions_part(made: Bundle) -> None:
    lose_part(made)
    shutil.copytree(split(made.path.parent / "other", version=2).path / "hub", made.path / "hub")


def flip_bit(made: Bundle) -> None:
    data = bytearray(weights_of(made))
    data[-5] ^= 1
    (made.path / "hub" / HUB_FILE).write_bytes(data)


def hold_nan(made: Bundle) -> None:
    tensors = load(weights_of(made))
    next(iter(tensors.values())).view(-1)[-1] = float("nan")
    with_weights(made, save(tensors))


def lie_in_header(made: Bundle) -> None:
    data = weights_of(made)
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    entry = header[max(header, key=lambda name: header[name]["data_offsets"][1])]
    entry["shape"], entry["data_offsets"][1] = [1 << 20], entry["data_offsets"][0] + (4 << 20)
    written = json.dumps(header).encode()
    with_weights(made, struct.pack("<Q", len(written)) + written + data[8 + length :])


def leave_a_tensor_out(made: Bundle) -> None:
    tensors = load(weights_of(made))
    tensors.pop("w3")
    with_weights(made, save(tensors))


def bring_one_too_many(made: Bundle) -> None:
    with_weights(made, save({**load(weights_of(made)), "w999": torch.zeros(3)}))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        further(lose_part, "the hub part of echo@1 is not there"),
        further(lose_shard, f"{HUB_FILE}: named by part.json, but missing"),
        (take_another_versions_part, "the hub part is of echo@2, the edge part of echo@1"),
        (flip_bit, f"echo@1: {HUB_FILE}: its content is not what the manifest promises (SHA-256 differs)"),
        (hold_nan, "holds NaN"),
        further(lie_in_header, "its header lies"),
        (leave_a_tensor_out, "weights: missing or too many: w3"),
        further(bring_one_too_many, "weights: missing or too many: w999"),
    ],
)
@BOTH
def test_what_is_wrong_with_a_hub_part_is_one_line_and_no_engine(tmp_path, damage, why, means):
    made = split(tmp_path)
    damage(made)
    assert why in refusal(made.path, means)
