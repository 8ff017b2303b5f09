"""Launcher of ranks on the machines of a Ray cluster: hosts placed by a driver process, links by TLS to this hub.

A session serves generation after generation as long as all of its hosts live; when one is lost, the next generation
gets a new session, and with it a new placement. Rule: a generation that is started never waits for Ray; its answers
come over its own links, which are closed before it is given up, and only ranks of the generation have its token.
"""

import importlib.util
import socket
import time
from collections.abc import Callable, Sequence
from importlib import metadata

from cloud_hub.engine.base import ClusterError
from cloud_hub.engine.sharded.cluster.messages import BundleOrder, HostFacts, PlaceHosts
from cloud_hub.engine.sharded.cluster.session import DriverSession
from cloud_hub.engine.sharded.launcher import LaunchedRanks, LaunchError, LostRank, number_device
from cloud_hub.engine.sharded.protocol import RankConfig, RankLink
from cloud_hub.engine.sharded.rank_links import JoinedLink, RankListener, find_own_address
from cloud_hub.engine.sharded.tls_link import TlsLink
from cloud_hub.engine.types import RayOptions
from models.bundle.hub_part import HubPart
from models.bundle.manifest import HUB_FOLDER

_TOLD = 0.9
_AVOID_S = 60.0  # after that Ray knows whether a node is gone


class RayLauncher:
    """Starts ranks on the nodes of a Ray cluster, all ranks of a stage on one node."""

    def __init__(self, cluster: RayOptions, bundle: BundleOrder, threads: int = 1) -> None:
        self._cluster = cluster
        self._bundle = bundle
        self._threads = threads
        self._session: DriverSession | None = None
        self._silent: dict[str, float] = {}  # nodes that did not answer, by Ray's ids, and when

    @property
    def pid(self) -> int:
        return self._session.pid if self._session else 0

    @property
    def nodes(self) -> Sequence[str]:
        """The node of each stage, as it names itself; () before the first generation."""
        return tuple(host.node for host in self._session.hosts) if self._session else ()

    def start_ranks(self, charter: RankConfig, until: float) -> LaunchedRanks:
        session = self._ensure_session(charter, until)
        try:
            listener = RankListener(self._bundle.supervisor, self._cluster.ports, charter.generation)
        except OSError as error:
            raise LaunchError(str(error)) from None
        ranks = range(charter.tensor * charter.pipeline)
        orders = [[listener.make_order(at) for at in _ranks_of(stage, charter)] for stage in range(charter.pipeline)]
        session.spawn_ranks(charter.generation, orders, max(0.0, until - time.monotonic()))
        try:
            joined = listener.accept_ranks(len(ranks), until, lambda: _require_hosts(session, charter))
        except TimeoutError as error:
            self._abandon(session, charter)
            raise LaunchError(str(error)) from None
        except LaunchError:
            self._abandon(session, charter)
            raise
        finally:
            listener.close()
        return ClusterRanks(session, charter, joined, self._abandon)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _abandon(self, session: DriverSession, charter: RankConfig) -> None:
        """Kill a generation. Where a host does not say that its ranks are dead, the session ends and its node waits."""
        silent = session.kill_ranks(charter.generation)
        for stage in silent:
            self._silent[session.nodes[stage]] = time.monotonic()
        if silent or not session.sound:
            session.close()

    def _ensure_session(self, charter: RankConfig, until: float) -> DriverSession:
        """The present session if it can start another generation, else a new one whose nodes agree with this hub."""
        if self._session is not None and not self._session.sound:
            self.close()
        if self._session is None:
            if importlib.util.find_spec("ray") is None:
                raise LaunchError("[ray] needs Ray on this machine: install the extra 'ray' beside 'hub'")
            kind = "GPU" if charter.device.startswith("cuda") else "CPU"
            each = charter.tensor * (self._threads if kind == "CPU" else 1)
            limit_s = max(0.0, until - time.monotonic()) * _TOLD  # so that the driver says what it waited for
            avoid = tuple(node for node, since in self._silent.items() if time.monotonic() - since < _AVOID_S)
            order = PlaceHosts(
                self._cluster.address, charter.pipeline, {kind: float(each)}, self._bundle, limit_s, avoid
            )
            session = DriverSession(order, until)
            if why := compare_hosts(session.hosts, metadata.version("torch"), metadata.version("skerry")):
                session.close()
                raise LaunchError(why)
            self._session = session
        return self._session


def make_cluster_launcher(part: HubPart, cluster: RayOptions, threads: int) -> RayLauncher:
    """Make the launcher of one replica of a hub part that each node has in a folder of its own.

    ClusterError if there is no way to the cluster.
    """
    version = part.path.parent if part.path.name == HUB_FOLDER else part.path  # format 2 has no folder for the hub
    try:
        supervisor = cluster.host or find_own_address(cluster.address.rpartition(":")[0])
    except OSError as error:
        raise ClusterError(f"{part.manifest.model}: no way to the Ray head at {cluster.address} ({error})") from None
    order = BundleOrder(part.manifest.model, str(version.absolute()), part.digest, supervisor)
    return RayLauncher(cluster, order, threads)


def compare_hosts(hosts: Sequence[HostFacts], torch: str, skerry: str) -> str:
    """Say in one line what a node refused, or has otherwise than this hub or the first node; "" if all agree.

    A node's torch may be built otherwise than the hub's (for cards), but not than the other nodes'.
    """
    for host in hosts:
        if host.refused:
            return f"node {host.node}: {host.refused}"
        if host.skerry != skerry:
            return f"node {host.node}: has Skerry {host.skerry}, this hub {skerry}"
        if host.torch.partition("+")[0] != torch.partition("+")[0]:
            return f"node {host.node}: has torch {host.torch}, this hub {torch}"
        if host.torch != hosts[0].torch:
            return f"node {host.node}: has torch {host.torch}, node {hosts[0].node} {hosts[0].torch}"
    return ""


def _ranks_of(stage: int, charter: RankConfig) -> range:
    return range(stage * charter.tensor, (stage + 1) * charter.tensor)


def _require_hosts(session: DriverSession, charter: RankConfig) -> None:
    """LaunchError if a generation that is being started has lost a rank, a host or its driver."""
    session.read_reports()
    for stage, why in session.lost_hosts.items():
        raise LaunchError(
            f"node {session.hosts[stage].node} is gone: {why}", _ranks_of(stage, charter)[0], cluster=True
        )
    for dead in session.list_dead(charter.generation):
        raise LaunchError("died before it was connected", _ranks_of(dead.stage, charter)[dead.at])
    if not session.sound:
        raise LaunchError(session.describe_end(), cluster=True)


AbandonCallback = Callable[[DriverSession, RankConfig], None]


class ClusterRanks:
    """Ranks of one generation on the nodes of a cluster."""

    def __init__(
        self, session: DriverSession, charter: RankConfig, joined: Sequence[JoinedLink], abandon: AbandonCallback
    ) -> None:
        self._session = session
        self._charter = charter
        self._abandon = abandon
        self._links: Sequence[TlsLink] = tuple(each.link for each in joined)
        self._said = tuple(each.said for each in joined)

    @property
    def links(self) -> Sequence[RankLink]:
        return self._links

    @property
    def pids(self) -> Sequence[int]:
        return tuple(said.pid for said in self._said)

    @property
    def devices(self) -> Sequence[str]:
        """Each host sees the cards of its own stage only, counted from 0."""
        tensor = self._charter.tensor
        return tuple(number_device(self._charter.device, at % tensor) for at in range(len(self._said)))

    @property
    def places(self) -> Sequence[str]:
        hosts, tensor = self._session.hosts, self._charter.tensor
        return tuple(hosts[at // tensor].node for at in range(len(self._said)))

    @property
    def store(self) -> str:
        return self._said[0].store

    @property
    def news(self) -> socket.socket | None:
        return self._session.news

    def list_pending(self) -> Sequence[int]:
        return [at for at, link in enumerate(self._links) if link.pending]

    def find_lost(self, patience_s: float = 0.0) -> Sequence[LostRank]:
        self._session.read_reports(patience_s)
        dead = self._session.list_dead(self._charter.generation)
        lost = [LostRank(_ranks_of(each.stage, self._charter)[each.at], "died") for each in dead]
        for stage, why in self._session.lost_hosts.items():
            lost += [LostRank(at, f"its node is gone: {why}") for at in _ranks_of(stage, self._charter)]
        return lost

    def kill(self) -> None:
        links, self._links = self._links, ()
        for link in links:
            link.close()
        if links:
            self._abandon(self._session, self._charter)
