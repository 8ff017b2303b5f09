"""What a sharded engine refuses: in one line, in bounded time. Its ranks as processes: `tests/live/hub`."""

import os
import socket
import time
from pathlib import Path

import pytest

from cloud_hub.engine.base import EngineError
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded import protocol
from cloud_hub.engine.types import EngineOptions
from models.bundle.manifest import HUB_FILE, HUB_GRAPH_FILE, BundleError, ParallelPlan
from tests.cloud_hub.doubles.gangs import gang_bundle

TWO = EngineOptions(max_batch=4, tensor=2, devices=2, replicas=1)


def refusal(path: Path, means: EngineOptions) -> str:
    started = time.monotonic()
    with pytest.raises((BundleError, EngineError)) as caught:
        open_engine(path, means)
    assert time.monotonic() - started < 60
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_on_another_system_than_linux_a_gang_is_one_process_which_says_so(tmp_path, monkeypatch):
    path = gang_bundle(tmp_path, "echo").path
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    engine = open_engine(path, TWO)
    assert "needs Linux" in engine.setup.fallback
    assert engine.infer([engine.sample()])
    small = EngineOptions(max_batch=4, devices=2, memory_bytes=256 << 20)
    with pytest.raises(BundleError, match=r"it does not fit: .* needs Linux"):
        open_engine(path, small)


def test_a_world_size_without_devices_is_refused(tmp_path):
    path = gang_bundle(tmp_path, "echo", ParallelPlan(tensor=4, pipeline=2)).path
    assert refusal(path, EngineOptions(devices=2)) == (
        "echo@1: the plan takes 8 devices (tensor 4, pipeline 2), there are 2"
    )


def test_a_model_that_does_not_fit_is_refused_by_its_size(tmp_path):
    path = gang_bundle(tmp_path, "echo").path
    assert refusal(path, EngineOptions(devices=2, memory_bytes=256 << 20)).startswith(
        "echo@1: it does not fit: it takes 25"
    )


@pytest.mark.further
def test_a_shard_of_another_digest_is_refused_before_any_rank_is_born(tmp_path):
    path = gang_bundle(tmp_path, "echo").path
    data = bytearray((path / HUB_FILE).read_bytes())
    data[-5] ^= 1
    (path / HUB_FILE).write_bytes(data)
    assert refusal(path, TWO) == (
        f"echo@1: {HUB_FILE}: its content is not what the manifest promises (SHA-256 differs)"
    )


@pytest.mark.further
def test_an_engine_that_never_gets_ready_is_given_up_in_time(tmp_path):
    path = gang_bundle(tmp_path, "echo").path
    assert refusal(path, EngineOptions(tensor=2, devices=2, ready_s=0.05)).startswith(
        "echo@1: rank 0 of generation 1: "
    )


@pytest.mark.further
def test_graphs_that_are_not_what_the_manifest_says_are_refused(tmp_path):
    bundle = gang_bundle(tmp_path, "transformer")
    other = gang_bundle(tmp_path / "other", "echo")
    for name in (HUB_GRAPH_FILE, HUB_FILE):
        (bundle.path / name).write_bytes((other.path / name).read_bytes())
    assert "its content is not what the manifest promises" in refusal(bundle.path, TWO)


def test_nonsense_on_the_socket_ends_it_and_allocates_nothing():
    ours, theirs = socket.socketpair()
    theirs.sendall(b"\xff" * 64)
    with pytest.raises(protocol.PipeError, match="malformed message"):
        protocol.receive_message(ours, time.monotonic() + 60)
    with pytest.raises(protocol.PipeError, match="malformed message"):
        protocol.parse_arrays([protocol.ArrayForm("float32", (1 << 40,))], bytearray(8))
    with pytest.raises(protocol.PipeError, match="malformed message"):
        protocol.parse_arrays([protocol.ArrayForm("O", (1,))], bytearray(8))
    theirs.close()
    ours.close()


@pytest.mark.parametrize(("batch", "pieces", "sizes"), [(8, 1, (8,)), (8, 3, (3, 3, 2)), (2, 4, (1, 1)), (1, 0, (1,))])
def test_a_batch_is_divided_into_even_microbatches_and_never_into_empty_ones(batch, pieces, sizes):
    assert protocol.split_batch(batch, pieces) == sizes
