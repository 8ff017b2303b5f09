"""Messages between a hub and its driver of a Ray cluster: JSON, one a line; and what the driver's hosts are told."""

import msgspec

from cloud_hub.engine.sharded.protocol import JoinOrder

MAX_LINE_BYTES = 1 << 20


class BundleOrder(msgspec.Struct, frozen=True):
    """The bundle that ranks are made of. `folder`: where the hub has it; `digest`: of its `part.json`, in hex.

    `supervisor`: address of the hub, by which a node knows which of its own addresses the others reach.
    """

    model: str
    folder: str
    digest: str
    supervisor: str


class HostFacts(msgspec.Struct, frozen=True):
    """What a node says of itself. `refused`: one line if it can have no ranks of this bundle, else ""."""

    node: str
    torch: str = ""
    skerry: str = ""
    refused: str = ""


class PlaceHosts(msgspec.Struct, frozen=True, tag="place"):
    """First order: place one host a stage, each with `resources`, on nodes of the cluster at `address`.

    `avoid`: nodes that did not answer lately, by Ray's ids; they are taken only if the others have no room.
    """

    address: str
    stages: int
    resources: dict[str, float]
    bundle: BundleOrder
    limit_s: float
    avoid: tuple[str, ...] = ()


class SpawnRanks(msgspec.Struct, frozen=True, tag="spawn"):
    """Start the ranks of a generation; `orders`: by stage, one for each rank of the stage."""

    generation: int
    orders: tuple[tuple[JoinOrder, ...], ...]
    limit_s: float


class KillRanks(msgspec.Struct, frozen=True, tag="kill"):
    """Kill all ranks of a generation."""

    generation: int


class HostsPlaced(msgspec.Struct, frozen=True, tag="placed"):
    """All hosts run; what each node says of itself, and Ray's id of it, by stage."""

    hosts: tuple[HostFacts, ...]
    nodes: tuple[str, ...]


class RanksKilled(msgspec.Struct, frozen=True, tag="killed"):
    """The ranks of one stage are dead."""

    generation: int
    stage: int


class RankDied(msgspec.Struct, frozen=True, tag="died"):
    """A rank is dead. `at`: which one of its stage."""

    generation: int
    stage: int
    at: int


class HostLost(msgspec.Struct, frozen=True, tag="lost"):
    """Ray says that a host or its node is gone."""

    stage: int
    why: str


class HeadLost(msgspec.Struct, frozen=True, tag="head"):
    """The head of the cluster does not answer any more; ranks that live go on without it."""


class DriverFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Last word of a driver: one line."""

    why: str


DriverOrder = PlaceHosts | SpawnRanks | KillRanks
DriverReport = HostsPlaced | RanksKilled | RankDied | HostLost | HeadLost | DriverFailed
_encoder = msgspec.json.Encoder()
_orders = msgspec.json.Decoder(DriverOrder)
_reports = msgspec.json.Decoder(DriverReport)


def encode_line(word: DriverOrder | DriverReport) -> bytes:
    """Encode a message as one line."""
    return _encoder.encode(word) + b"\n"


def decode_order(line: bytes) -> DriverOrder:
    """Decode a line to the driver. msgspec.DecodeError if it is none."""
    found: DriverOrder = _orders.decode(line)
    return found


def decode_report(line: bytes) -> DriverReport:
    """Decode a line of the driver. msgspec.DecodeError if it is none."""
    found: DriverReport = _reports.decode(line)
    return found
