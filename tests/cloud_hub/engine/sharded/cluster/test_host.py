"""What a node refuses before it reads a weight: another bundle, a changed file, a network that is not there."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from cloud_hub.engine.sharded.cluster.host import RankHost, find_rank_network, open_own_bundle
from cloud_hub.engine.sharded.cluster.messages import BundleOrder
from models.bundle.bundle import open_edge_part
from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import HUB_FILE, BundleError, ParallelPlan
from tests.cloud_hub.doubles.gangs import gang_bundle


def order_of(path: Path) -> BundleOrder:
    part = open_hub_part(path, open_edge_part(path).manifest)
    return BundleOrder(part.manifest.model, str(path), part.digest, "127.0.0.1")


@pytest.fixture
def node(tmp_path, monkeypatch) -> tuple[BundleOrder, Path]:
    """What the hub orders, and the folder of the node's own copy."""
    path = gang_bundle(tmp_path / "hub", "echo").path
    shutil.copytree(path, tmp_path / "node" / path.name)
    monkeypatch.setenv("SKERRY_BUNDLES", str(tmp_path / "node"))
    return order_of(path), tmp_path / "node" / path.name


def test_a_node_opens_its_own_copy_and_keeps_the_very_files_that_it_checked(node):
    order, own = node
    with open_own_bundle(order) as files:
        descriptor = files.descriptors[HUB_FILE]
        assert os.path.samestat(os.fstat(descriptor), (own / HUB_FILE).stat())


def test_without_a_folder_of_its_own_a_node_has_bundles_where_the_hub_has_them(node, monkeypatch):
    monkeypatch.delenv("SKERRY_BUNDLES")
    with open_own_bundle(node[0]) as files:
        assert os.path.samestat(os.fstat(files.descriptors[HUB_FILE]), (Path(node[0].folder) / HUB_FILE).stat())


def test_a_node_without_the_bundle_says_where_it_looked(node):
    shutil.rmtree(node[1])
    with pytest.raises(BundleError, match=rf"^{node[1]}: the bundle of echo@1 is not there$"):
        open_own_bundle(node[0])


def test_a_node_with_another_bundle_of_that_version_is_refused_by_its_digest(node, tmp_path):
    order, own = node
    shutil.rmtree(own)
    gang_bundle(own.parent, "echo", ParallelPlan(tensor=2))
    other = order_of(own)
    with pytest.raises(BundleError) as caught:
        open_own_bundle(order)
    assert str(caught.value) == (
        f"{own}: is another bundle of echo@1 than the hub's: its digest is {other.digest[:12]}..., the hub's"
        f" {order.digest[:12]}..."
    )


def test_a_node_with_another_version_in_that_folder_is_refused(node):
    order = msgspec.structs.replace(node[0], model="echo@2")
    with pytest.raises(BundleError, match=r"is the bundle of echo@1, not of echo@2$"):
        open_own_bundle(order)


def test_a_changed_weight_is_found_before_it_is_read(node):
    order, own = node
    data = bytearray((own / HUB_FILE).read_bytes())
    data[-5] ^= 1
    (own / HUB_FILE).write_bytes(data)
    with pytest.raises(BundleError, match=rf"^{own}: {HUB_FILE}: its content is not what the manifest promises"):
        open_own_bundle(order)


def test_a_host_refuses_in_one_line_and_starts_nothing(node):
    shutil.rmtree(node[1])
    facts = RankHost().prepare(node[0])
    assert facts.refused == f"{node[1]}: the bundle of echo@1 is not there"
    assert "127.0.0.1" in facts.node


def test_the_network_of_ranks_is_the_one_that_leads_to_the_hub_or_the_one_that_is_named(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert find_rank_network("127.0.0.1") == ("127.0.0.1", "lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert find_rank_network("192.0.2.1") == ("127.0.0.1", "lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none9")
    with pytest.raises(OSError, match="GLOO_SOCKET_IFNAME: there is no interface 'none9'"):
        find_rank_network("127.0.0.1")
