"""Host of one stage's ranks on a node of a Ray cluster: opens the node's own bundle, checks it, and forks ranks.

`driver` makes a Ray actor of `RankHost`; Ray is not imported here. Rule: the node reads nothing of a bundle whose
digests are not those of the hub's, and the files that were checked stay open, so that ranks read these very files.
"""

import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from cloud_hub.engine.sharded import protocol
from cloud_hub.engine.sharded.cluster.messages import BundleOrder, HostFacts
from cloud_hub.engine.sharded.fork_server import ForkServer, RankProcess, wait_for_death
from cloud_hub.engine.sharded.protocol import JoinOrder
from cloud_hub.engine.sharded.rank_links import find_own_address
from models.bundle.bundle import open_edge_part
from models.bundle.hub_part import HubPart, WeightFiles, open_hub_part
from models.bundle.manifest import BundleError

BUNDLES_VARIABLE = "SKERRY_BUNDLES"
_INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915  # from linux/sockios.h: the IPv4 address of an interface
_GONE_S = 5.0
_LOOK_S = 0.5
_SHORT = 12  # digits of a digest that people are shown


class RankHost:
    """Ranks of one stage. Its methods are called by threads: `watch` waits while the others work."""

    def __init__(self) -> None:
        self._files: WeightFiles | None = None
        self._server: ForkServer | None = None
        self._address = ""
        self._ranks: list[RankProcess] = []
        self._links: list[socket.socket] = []
        self._changing = threading.Lock()

    def prepare(self, order: BundleOrder) -> HostFacts:
        """Open and check the node's own bundle, and start what ranks are forked from."""
        node = os.uname().nodename
        try:
            self._address, interface = find_rank_network(order.supervisor)
            node = f"{node} ({self._address})"
            self._files = open_own_bundle(order)
        except (BundleError, OSError) as error:
            return HostFacts(node, refused=" ".join(str(error).split()))
        self._server = ForkServer(interface)
        return HostFacts(node, metadata.version("torch"), metadata.version("skerry"))

    def spawn(self, orders: Sequence[JoinOrder], patience_s: float) -> tuple[int, ...]:
        """Fork a rank for each order, after the ranks of an older generation were killed. Returns their processes."""
        self.kill()
        with self._changing:
            until = time.monotonic() + patience_s
            for order in orders:
                self._fork(order, until)
            return tuple(rank.pid for rank in self._ranks)

    def watch(self) -> int:
        """Wait until a rank of the present generation is dead; which of this host's, -1 if all were killed."""
        while ranks := list(self._ranks):
            try:
                wait_for_death(ranks, _LOOK_S)
                dead = [at for at, rank in enumerate(ranks) if not rank.alive]
            except OSError:
                return -1  # closed meanwhile, by `kill`
            if dead:
                return dead[0]
        return -1

    def kill(self) -> None:
        """Kill all ranks and wait until they are gone."""
        with self._changing:
            ranks, self._ranks = self._ranks, []
            for rank in ranks:
                rank.kill(_GONE_S)
                rank.close()
            for link in self._links:
                link.close()
            self._links = []

    def hold(self) -> None:
        """Never return: whoever waits for it learns from Ray when this actor or its node is gone."""
        threading.Event().wait()

    def _fork(self, order: JoinOrder, until: float) -> None:
        if self._server is None or self._files is None:
            raise RuntimeError("the host was not prepared")
        ours, theirs = socket.socketpair()
        self._links.append(ours)
        try:
            self._ranks.append(self._server.spawn(theirs, tuple(self._files.descriptors.values()), until))
        finally:
            theirs.close()
        protocol.send_message(ours, msgspec.structs.replace(order, address=self._address))


def open_own_bundle(order: BundleOrder) -> WeightFiles:
    """Open the weights of this node's own copy of a bundle, hashed. BundleError, one line, if it is not that bundle.

    It lies in the folder that SKERRY_BUNDLES names, under the name that it has on the hub, or where the hub has it.
    """
    root, path = os.environ.get(BUNDLES_VARIABLE, ""), Path(order.folder)
    path = Path(root) / path.name if root else path
    if not path.is_dir():
        raise BundleError(f"{path}: the bundle of {order.model} is not there")
    part = open_hub_part(path, open_edge_part(path).manifest)
    check_digest(part, path, order)
    files = part.open_weights()
    try:
        files.verify()
    except BundleError as error:
        files.close()
        raise BundleError(f"{path}: {error}") from None
    return files


def check_digest(part: HubPart, path: Path, order: BundleOrder) -> None:
    """Compare the bundle that was found with the hub's. BundleError if it is another."""
    if part.manifest.model != order.model:
        raise BundleError(f"{path}: is the bundle of {part.manifest.model}, not of {order.model}")
    if part.digest != order.digest:
        raise BundleError(
            f"{path}: is another bundle of {order.model} than the hub's: its digest is {part.digest[:_SHORT]}..., the"
            f" hub's {order.digest[:_SHORT]}..."
        )


def find_rank_network(supervisor: str) -> tuple[str, str]:
    """The address and interface that the ranks of this machine use. OSError if there is no such interface.

    Those of the interface that GLOO_SOCKET_IFNAME names, else of the one that leads to the supervisor.
    """
    named = os.environ.get(_INTERFACE_VARIABLE, "")
    if named:
        found = read_interface_address(named)
        if not found:
            raise OSError(f"{_INTERFACE_VARIABLE}: there is no interface {named!r} with an IPv4 address")
        return found, named
    own = find_own_address(supervisor)
    for _, name in socket.if_nameindex():
        if read_interface_address(name) == own:
            return own, name
    raise OSError(f"no interface has the address {own}: name it in {_INTERFACE_VARIABLE}")


def read_interface_address(name: str) -> str:
    """IPv4 address of a network interface; "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(found[20:24])
