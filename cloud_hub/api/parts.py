"""What the routes of the hub's web API stand on, handed over as one value."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cloud_hub.access import Keys
from cloud_hub.api.face import HubFace, RolloutsDesk
from cloud_hub.audit import Audit
from cloud_hub.enrol import Issuer
from cloud_hub.ledger_clerk import Clerk
from cloud_hub.orders import Orders
from cloud_hub.registry import Registry
from cloud_hub.renewal import Renewals
from cloud_hub.rollout_catalog import Catalog
from cloud_hub.rotation import Rotation
from cloud_hub.tries import Gate


@dataclass(frozen=True)
class Parts:
    """`now_ms` is hub time; `root_sha256` of the TUF root that invites carry, "" = none.

    `gate` slows enrolment, `renewal_gate` renewal. `evict` throws a device off the broker. `repository`: the folder
    with what devices fetch. `keys` and `audit`: who may use the web API, and who did.
    """

    hub: HubFace
    registry: Registry
    issuer: Issuer
    renewals: Renewals
    rotation: Rotation
    gate: Gate
    renewal_gate: Gate
    now_ms: Callable[[], int]
    evict: Callable[[str], None]
    root_sha256: Callable[[], str] = str
    repository: Path | None = None
    orders: Orders = field(default_factory=Orders)
    keys: Keys = field(default_factory=Keys.in_memory)
    audit: Audit = field(default_factory=Audit)
    ledger: Clerk | None = None
    rollouts: RolloutsDesk | None = None
    catalog: Catalog | None = None
