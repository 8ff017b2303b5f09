"""What the chart starts, started: pods of the rendered manifests as processes, with a real PostgreSQL and Mosquitto.

The commands, the configuration, the environment, the users and the read-only file systems are those of the manifests;
the ports of the hubs' web APIs differ by a variable, since all pods have the address of this machine.
"""

import asyncio
import base64
import json
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ChildProcess, HubHandle, ProcessHarness, find_free_port
from tests.live.doubles.chart import EXAMPLES, pick, render
from tests.live.doubles.fleet import BUSY_S, QUICK, burst, judged, policy, samples, settle
from tests.live.doubles.kubelet import Kubelet, Pod, can_isolate
from tests.postgres import PostgresServer, find_programs

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(900)]

CONFIG = "/etc/skerry/config/hub.toml"
STATE = "/var/lib/skerry/hub"
AGENTS = ("a", "b", "c")


@pytest.fixture(autouse=True)
def _isolated() -> None:
    if not can_isolate():
        pytest.skip("pods need root here: mounts and users of their own")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that is reached over TCP, by its name and a password."""
    if find_programs() is None:
        pytest.skip("PostgreSQL is not installed: ./setup.sh dev installs it")
    with PostgresServer({"listen_addresses": "127.0.0.1", "port": str(find_free_port())}) as started:
        yield started


class PodHarness(ProcessHarness):
    """A harness whose hub runs in a pod: it invites as the chart's notes say."""

    pod: Pod

    async def create_invite(self, device: str) -> str:
        command = ["skerry", "hub", "invite", device, "--config", CONFIG, "--json"]
        done = await asyncio.to_thread(self.pod.containers["hub"].execute, command)
        return str(json.loads(done.stdout)["invite"])

    async def stop(self) -> None:
        await asyncio.gather(*(agent.child.stop() for agent in self.agents))


class PodRegion:
    """Three hubs and a broker as the chart describes them. `folder`: of the pods and devices."""

    def __init__(self, kubelet: Kubelet, documents: list[dict[str, Any]], stage: PodHarness, url: str) -> None:
        self.kubelet, self.stage = kubelet, stage
        self.hubs = pick(documents, "StatefulSet")
        self.broker = kubelet.add("skerry-mqtt-0", pick(documents, "Deployment", "skerry-mqtt"))
        self.pods: dict[int, Pod] = {}
        self.ports: dict[int, int] = {}
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(text)]

    def shards(self) -> dict[str, int]:
        alive = "kind = 'shard' and until_ms > extract(epoch from clock_timestamp()) * 1000"
        return dict(self.query(f"select hub, count(*) from region.leases where {alive} group by hub"))

    def begin(self, index: int) -> Pod:
        """Start the pod of an ordinal, as the controller of the StatefulSet does."""
        name = f"{self.hubs['metadata']['name']}-{index}"
        pod = self.kubelet.add(name, self.hubs, index, SKERRY_HUB_API__PORT=str(self.ports[index]))
        self.pods[index] = pod
        pod.start()
        return pod

    async def start(self, ports: list[int]) -> None:
        """The broker's pod, and beside it one hub after the other, each once the one before is ready."""
        first = self.hubs["spec"]["ordinals"]["start"]
        self.ports = dict(enumerate(ports, first))
        broker = asyncio.create_task(asyncio.to_thread(self.broker.start))
        for index in self.ports:
            pod = await asyncio.to_thread(self.begin, index)
            await asyncio.to_thread(pod.until_ready)
        await broker
        await asyncio.to_thread(self.broker.until_ready)
        self.stage.pod = self.pods[first]
        await self.until_shared()

    async def until_shared(self) -> None:
        async with asyncio.timeout(BUSY_S):
            while self.shards() != {"hub": 86, "hub-2": 85, "hub-3": 85}:
                await asyncio.sleep(0.1)

    async def roll(self) -> None:
        """A rolling update from the last ordinal to the first: each is ended, and ready again before the next."""
        for index in sorted(self.pods, reverse=True):
            codes = await asyncio.to_thread(self.pods[index].stop)
            assert codes == {"hub": 0}, self.pods[index].containers["hub"].tail()
            pod = await asyncio.to_thread(self.begin, index)
            await asyncio.to_thread(pod.until_ready)
            await asyncio.sleep(self.hubs["spec"]["minReadySeconds"])

    async def until_answered(self, more: int) -> None:
        """Until so many more questions were answered by hubs."""
        query = "select count(*) from questions.effects where ended_ms > 0"
        least = int(self.query(query)[0][0]) + more
        async with asyncio.timeout(BUSY_S):
            while int(self.query(query)[0][0]) < least:
                await asyncio.sleep(0.05)


def values_of(folder: Path, server: PostgresServer, url: str, ports: list[int]) -> Path:
    """The example of a region, but for the places where its database, broker and web API are."""
    parts = sa.make_url(url)
    where = f"{parts.username}@db.example:{server.port}/{parts.database}"
    more = {
        "store": {"url": f"postgresql+psycopg://{where}", "caSecret": {"name": ""}},
        "api": {"url": f"https://127.0.0.1:{ports[0]}", "names": ["127.0.0.1"]},
        "broker": {"kind": "mosquitto", "port": find_free_port(), "address": "127.0.0.1"},
        "config": {"hub": {"name": "hub-1", "region": "local"}},
    }  # fmt: skip
    path = folder / "more.yaml"
    path.write_text(json.dumps(more))
    return path


@asynccontextmanager
async def region_of_pods(folder: Path, bundle: Bundle, server: PostgresServer) -> AsyncIterator[PodRegion]:
    url, ports = server.create_database(), [find_free_port() for _ in range(3)]
    parts = sa.make_url(url)
    more = values_of(folder, server, url, ports)
    (example,) = [path for path in EXAMPLES if path.stem == "region"]
    documents = render(example, "--values", str(more))
    given = {
        "skerry-database": {"password": str(parts.password).encode()},
        "skerry-region": {"region.key": base64.b64encode(secrets.token_bytes(32)) + b"\n"},
    }
    names = ("db.example", "skerry-mqtt.edge.svc")
    claims = {"bundles": make_visible(folder / "claim", bundle)}
    with Kubelet(folder / "pods", documents, given, claims, names) as kubelet:
        async with PodHarness(folder) as stage:
            region = PodRegion(kubelet, documents, stage, url)
            nobody = ChildProcess("cloud_hub", folder / "none", folder / "none.log")
            stage.hub = HubHandle(folder / "none", f"https://127.0.0.1:{ports[0]}", 0, nobody, url)
            await region.start(ports)
            yield region


def make_visible(claim: Path, bundle: Bundle) -> Path:
    """A volume of bundles that everybody may read."""
    shutil.copytree(bundle.path, claim / "digits")
    for path in (claim, *claim.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return claim


async def start_agents(region: PodRegion, bundle: Bundle, folder: Path) -> list[AgentHandle]:
    made = [await region.stage.add_agent(name, bundle.path, policy(folder), QUICK) for name in AGENTS]
    for agent in made:
        await region.stage.start_agent(agent)
    return made


async def test_three_hubs_of_the_chart_are_updated_one_after_the_other_under_load_and_nothing_is_lost(
    tmp_path: Path, bundle: Bundle, server: PostgresServer
):
    async with region_of_pods(tmp_path, bundle, server) as region:
        agents = await start_agents(region, bundle, tmp_path)
        stop = asyncio.Event()

        async def load(agent: AgentHandle) -> None:
            while not stop.is_set():
                await burst(region.stage, agent, bundle, samples(20), at_once=2)

        asking = [asyncio.create_task(load(agent)) for agent in agents]
        await region.until_answered(20)
        await region.roll()
        await region.until_answered(20)
        stop.set()
        await asyncio.gather(*asking)
        await settle(region.stage)
        report = judged(region.stage)
        assert (report.lost, report.doubled) == (0, 0), report.format_text()
        assert region.query("select count(*) from questions.sealed") == [(0,)]
        await region.until_shared()


async def test_a_pod_is_nobody_special_and_the_broker_follows_the_authority_without_its_key(
    tmp_path: Path, bundle: Bundle, server: PostgresServer
):
    async with region_of_pods(tmp_path, bundle, server) as region:
        first, mosquitto = region.pods[1].containers["hub"], region.broker.containers["mosquitto"]
        for container in (first, mosquitto):
            assert container.execute(["id", "-u"]).stdout.strip() == "10001"
            assert container.execute(["touch", "/usr/x"], check=False).returncode != 0
            assert container.execute(["touch", "/x"], check=False).returncode != 0
        assert container_mode(first, f"{STATE}/region.key") == "600"
        assert mosquitto.execute(["ls", "/etc/skerry"], check=False).returncode != 0
        assert mosquitto.execute(["ls", "/broker/files/ca"]).stdout.count(".0") == 1
        before = mosquitto.process
        first.execute(["skerry", "hub", "ca", "rotate", "--config", CONFIG])
        async with asyncio.timeout(BUSY_S):
            while mosquitto.execute(["ls", "/broker/files/ca"]).stdout.count(".0") != 2:
                await asyncio.sleep(0.5)
        assert mosquitto.answers("livenessProbe"), "a second authority needs no restart"
        first.execute(["skerry", "hub", "ca", "finish", "--force", "--config", CONFIG])
        async with asyncio.timeout(BUSY_S):
            while await asyncio.to_thread(mosquitto.answers, "livenessProbe"):
                await asyncio.sleep(0.5)
        await asyncio.to_thread(mosquitto.stop, 10.0)  # as a kubelet does then
        mosquitto.start()
        assert mosquitto.process is not before
        await asyncio.to_thread(mosquitto.until, "readinessProbe")
        for pod in region.pods.values():
            await asyncio.to_thread(pod.containers["hub"].until, "readinessProbe")


def container_mode(container: Any, path: str) -> str:
    return str(container.execute(["stat", "-c", "%a", path]).stdout.strip())


async def test_one_hub_of_the_chart_serves_from_its_volume_and_keeps_what_it_has_over_a_new_pod(
    tmp_path: Path, bundle: Bundle
):
    (example,) = [path for path in EXAMPLES if path.stem == "one-hub"]
    api, broker = find_free_port(), find_free_port()
    documents = render(
        example, "--set", f"broker.port={broker},api.url=https://127.0.0.1:{api},broker.address=127.0.0.1"
    )
    workload = pick(documents, "StatefulSet")
    claims = {"bundles": make_visible(tmp_path / "claim", bundle)}
    with Kubelet(tmp_path / "pods", documents, {}, claims, ("skerry-mqtt.edge.svc",)) as kubelet:
        for start in (1, 2):
            pod = kubelet.add("skerry-1", workload, 1, SKERRY_HUB_API__PORT=str(api))
            await asyncio.to_thread(pod.start)
            await asyncio.to_thread(pod.until_ready)
            hub = pod.containers["hub"]
            made = await asyncio.to_thread(hub.execute, ["skerry", "hub", "invite", f"cam-{start}", "--config", CONFIG])
            assert made.stdout.startswith("skerry1:")
            shown = await asyncio.to_thread(hub.execute, ["skerry", "hub", "status", "--config", CONFIG, "--json"])
            assert json.loads(shown.stdout)["member"] == "hub"
            state = tmp_path / "pods" / "claims" / "state-skerry-1" / "hub"
            assert {path.stat().st_mode & 0o077 for path in (state, state / "hub.db", state / "admin.token")} == {0}
            assert await asyncio.to_thread(pod.stop) == {"hub": 0}
