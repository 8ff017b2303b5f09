"""Root of trust of the update repository: the root that the invite names by its hash, or none at all."""

from hashlib import sha256

from cloud_hub.enrollment.enrollment import EnrollmentService
from cloud_hub.enrollment.replies import BrokerAddress, HubAddress
from cloud_hub.repository.files import TrustAnchor
from edge_agent.identity.identity import load_identity
from tests.edge_agent.identity.test_enrollment import HUB, Bench, hub

ROOT = b'{"signed": "root 1"}'


def with_root(bench: Bench, root: bytes = ROOT) -> None:
    metadata = bench.folder / "repository" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / "1.root.json").write_bytes(root)
    place = HubAddress(BrokerAddress("127.0.0.1", 18883), (HUB,), anchor=TrustAnchor(metadata.parent))
    bench.issuer = EnrollmentService(bench.registry, bench.authority, place)
    bench.issuer.set_url(bench.url)


def digest(root: bytes = ROOT) -> str:
    return sha256(root).hexdigest()


async def test_the_root_that_the_invite_names_is_kept(tmp_path):
    async with hub(tmp_path) as bench:
        with_root(bench)
        made = await bench.enrol(bench.invite(root_sha256=digest()))
    found = load_identity(bench.device)
    assert found.tuf_root == made.tuf_root == ROOT
    assert found.tuf_url == f"{bench.url}/tuf"


async def test_another_root_makes_no_identity(tmp_path):
    async with hub(tmp_path) as bench:
        with_root(bench, b'{"signed": "of a thief"}')
        assert "ask for a new invite" in await bench.refused(bench.invite(root_sha256=digest()))


async def test_a_hub_that_hides_its_root_makes_no_identity(tmp_path):
    async with hub(tmp_path) as bench:
        assert "update root" in await bench.refused(bench.invite(root_sha256=digest()))


async def test_a_root_that_no_invite_vouches_for_is_not_believed(tmp_path):
    async with hub(tmp_path) as bench:
        with_root(bench)
        await bench.enrol(bench.invite())
    found = load_identity(bench.device)
    assert found.tuf_url == ""
    assert not (bench.device / "root.json").exists()
