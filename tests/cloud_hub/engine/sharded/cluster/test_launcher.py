"""What a hub compares before ranks are forked on nodes, and what it says when there is no cluster."""

import time

import pytest

from cloud_hub.engine.base import ClusterError
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.sharded.cluster.launcher import compare_hosts
from cloud_hub.engine.sharded.cluster.messages import HostFacts
from cloud_hub.engine.types import EngineOptions, RayOptions
from models.bundle.manifest import BundleError
from tests.cloud_hub.doubles.gangs import gang_bundle
from tests.wire.doubles.closed_port import closed_port

SOUND = HostFacts("a", "2.13.0+cpu", "1.0")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (SOUND, ""),
        (HostFacts("b", "2.13.0+cu130", "1.0"), "node b: has torch 2.13.0+cu130, node a 2.13.0+cpu"),
        (HostFacts("b", "2.12.1+cpu", "1.0"), "node b: has torch 2.12.1+cpu, this hub 2.13.0"),
        (HostFacts("b", "2.13.0+cpu", "0.9"), "node b: has Skerry 0.9, this hub 1.0"),
        (HostFacts("b", refused="no room"), "node b: no room"),
    ],
    ids=["equal", "another-build", "another-torch", "another-version", "refused"],
)
def test_a_node_that_differs_is_named_in_one_line(other, why):
    assert compare_hosts([SOUND, other], "2.13.0", "1.0") == why


@pytest.mark.further
def test_a_head_that_is_gone_is_one_line_in_bounded_time_and_leaves_no_process(tmp_path):
    path = gang_bundle(tmp_path, "echo").path
    started = time.monotonic()
    with closed_port() as port:
        ray = RayOptions(f"127.0.0.1:{port}", nodes=2)
        with pytest.raises(ClusterError) as caught:
            open_engine(path, EngineOptions(max_batch=4, pipeline=2, ready_s=60, ray=ray))
    assert str(caught.value) == f"echo@1: generation 1: no Ray head at 127.0.0.1:{port}"
    assert time.monotonic() - started < 60


@pytest.mark.further
def test_a_plan_for_more_nodes_than_are_configured_is_refused_before_anything_is_asked(tmp_path):
    path = gang_bundle(tmp_path, "echo").path
    with pytest.raises(
        Exception, match=r"^echo@1: the plan takes 4 devices \(tensor 2, pipeline 2, replicas 1\), there are 2$"
    ):
        open_engine(path, EngineOptions(tensor=2, pipeline=2, ray=RayOptions("127.0.0.1:1", nodes=2)))
    with pytest.raises(BundleError, match=r"^echo@1: tensor 2 does not go into a node of 1 devices: "):
        open_engine(path, EngineOptions(tensor=2, ray=RayOptions("127.0.0.1:1", nodes=2)))
