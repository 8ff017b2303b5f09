"""Simulated hub of a region: one process or several, which share its store, its broker and its name.

Rule: each message of a device goes to whoever subscribed to its shard, and where one process serves all, to that one.
"""

from collections import Counter
from functools import partial

from cloud_hub.region.leases import Lease
from cloud_hub.storage.jobs import ShardClaim
from simulations.checking.events import LeaseTaken, ShardWritten
from simulations.nodes.broker import SimulatedBroker
from simulations.nodes.hub_process import HubProcess
from simulations.nodes.services import RegionServices
from simulations.scenario.types import Region
from wire.protocol.topics import HUB_NAMES, compute_shard, parse_up_topic


class SimulatedHub:
    """One hub of a region with its processes (`members`), its store (`disk`) and its broker (`air`)."""

    def __init__(self, name: str, region: Region, ground: RegionServices) -> None:
        self.name = name
        self.region = region.name
        self.air = SimulatedBroker(ground.kernel, ground.weather)
        self.disk = ground.cores.hub_disk(
            ground.kernel, partial(ground.on_effect, name), partial(ground.on_undone, name), self._on_taken,
            self._on_written,
        )  # fmt: skip
        self._judge = ground.judge
        self.members = tuple(
            HubProcess(name, member, region, ground, air=self.air, disk=self.disk)
            for member in HUB_NAMES[: region.members]
        )

    @property
    def counts(self) -> Counter[str]:
        """The cores' counters, summed over all processes and lives."""
        return sum((each.counts for each in self.members), Counter[str]())

    def _on_taken(self, lease: Lease) -> None:
        self._judge.on_event(LeaseTaken(self.name, lease.id.number, lease.term, lease.session))

    def _on_written(self, session: str, claim: ShardClaim) -> None:
        self._judge.on_event(ShardWritten(self.name, claim.shard, claim.term, session))

    def start(self) -> None:
        """Start every process."""
        for each in self.members:
            each.start()

    def kill(self) -> None:
        """Kill every process that runs."""
        for each in self.members:
            if each.alive:
                each.kill()

    def lose_link(self) -> None:
        """Every process notices that its connection to the broker is lost."""
        for each in self.members:
            each.lose_link()

    def send_up(self, topic: str, frame: bytes, extra_s: float, delays: tuple[float, ...] | None = None) -> None:
        """Send a device's frame through the broker. `extra_s`: transmission time of its bytes.

        `delays`: after which it arrives where one process serves all; None = drawn now.
        """
        if len(self.members) == 1:
            (only,) = self.members
            self.air.deliver(only.line, only.on_message, topic, frame, extra_s=extra_s, delays=delays)
        else:
            self.air.publish(self.hear, topic, frame, extra_s=extra_s)

    def hear(self, topic: str, frame: bytes) -> bool:
        """A frame is at the broker: whoever gets it hears it now. False if nobody does."""
        heard = False
        shard = compute_shard(parse_up_topic(topic)[0]) if len(self.members) > 1 else -1
        for each in self.members:
            if each.line.up and not each.line.cut and (shard < 0 or shard in each.subscribed):
                each.on_message(topic, frame)
                heard = True
        return heard
