"""Registry of devices and invites: keys, certificates and states. Owns the rows of both.

Rule: memory is a copy of the database, changed only after the commit; the hub reads memory on every message. Enrolment
and administration are rare, so they commit inline (about a millisecond). Invite tokens are stored as SHA-256: 256
random bits need no salt, and a stolen file reveals no token.
"""

import json
import secrets
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Self

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from cloud_hub.database.changes import Topic, record_change
from cloud_hub.database.connection import Location, open_part, read_snapshot
from cloud_hub.database.parts import REGISTRY
from cloud_hub.database.statements import write_rows
from cloud_hub.database.tables import devices as _devices
from cloud_hub.database.tables import invites as _invites
from cloud_hub.registry.device_states import (
    GONE,
    HEARD,
    DeviceState,
    StateReason,
    explain_refusal,
    may_be_invited,
    may_become,
)
from wire.errors import LocalError
from wire.protocol.topics import extract_tenant, join_device_id, validate_device_id

MAX_OPEN_INVITES = 10_000
MAX_HARDWARE_CHARS = 64
MAX_HARDWARE = 1000


class InviteFault(StrEnum):
    """Why an invite token is refused."""

    UNKNOWN = "the invite is not known to this hub"
    USED = "the invite has been used already"
    EXPIRED = "the invite has expired"
    BLOCKED = "the device is suspended, retiring or revoked"
    HARDWARE = "the invite is for a machine with another serial number"


class RegistryError(Exception):
    """A request that the registry refuses: one line that says why."""


@dataclass(frozen=True)
class DeviceKeys:
    """Raw public keys of a device (32 bytes each), and serial, end and issuer of its certificate.

    `authority`: SHA-256 (hex) of the issuing CA. `hardware`: serial number that the machine reports; it proves
    nothing, it tells machines apart.
    """

    signing: bytes
    hpke: bytes
    serial: str
    certificate_ends_ms: int
    authority: str = ""
    hardware: str = ""


@dataclass(frozen=True)
class EnrolledDevice:
    """One enrolled device with its parsed keys. `ledger`: SHA-256 (hex) of the ledger it exported when it retired."""

    id: str
    state: DeviceState
    signing_key: Ed25519PublicKey
    hpke_key: X25519PublicKey
    serial: str
    certificate_ends_ms: int
    enrolled_ms: int
    changed_ms: int
    why: str = ""
    authority: str = ""
    hardware: str = ""
    retire_at_ms: int = 0
    ledger: str = ""
    device_class: str = ""
    region: str = ""

    @property
    def tenant(self) -> str:
        return extract_tenant(self.id)

    @property
    def active(self) -> bool:
        return self.state is DeviceState.ACTIVE

    @property
    def heard(self) -> bool:
        """Whether its signed messages are answered."""
        return self.state in HEARD

    @property
    def gone(self) -> bool:
        """Whether its keys are invalid for ever."""
        return self.state in GONE


@dataclass(frozen=True)
class Invite:
    """An invitation to enrol; `token` is shown once and never stored."""

    token: str
    device: str
    expires_ms: int


@dataclass(frozen=True)
class DeviceInvitation:
    """What an invite allows. `hardware`: serial numbers it is limited to, () = any machine.

    `replace`: a suspended device may enrol again, with new keys. `device_class`, `region`: facts that policy rules may
    use, "" = unknown.
    """

    device: str
    hardware: tuple[str, ...] = ()
    replace: bool = False
    device_class: str = ""
    region: str = ""


class Registry:
    """All devices, in memory and on disk; invites on disk only."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._devices: dict[str, EnrolledDevice] = {}
        self._written: dict[str, int] = {}  # revision of what this hub changed itself

    @classmethod
    def open(cls, where: Location) -> Self:
        """Open, create or migrate the registry. ExitError(DATABASE) if it is damaged or written by a newer version."""
        registry = cls(open_part(where, REGISTRY))
        with read_snapshot(registry._engine) as connection:
            registry.take_news(read_devices(connection), 0)
        return registry

    def close(self) -> None:
        self._engine.dispose()

    def device(self, device: str) -> EnrolledDevice | None:
        """The device with this id, in any state; None if it never enrolled."""
        return self._devices.get(device)

    def take_news(self, found: Iterable[EnrolledDevice], revision: int) -> None:
        """Take in devices as they were at a revision or later; what this hub changed after it stays."""
        for device in found:
            if self._written.get(device.id, 0) <= revision:
                self._devices[device.id] = device

    def devices(self) -> tuple[EnrolledDevice, ...]:
        """All devices, by id."""
        return tuple(self._devices[name] for name in sorted(self._devices))

    # Invites

    def invite(self, wanted: DeviceInvitation | str, now_ms: int, life_s: float) -> Invite:
        """Create a one-time invite token. RegistryError for an invalid id or serial number, or a blocked device."""
        asked = DeviceInvitation(wanted) if isinstance(wanted, str) else wanted
        self._check_invitable(asked)
        invite = Invite(secrets.token_urlsafe(32), asked.device, now_ms + int(life_s * 1000))
        row = {
            **asdict(asked),
            "token_hash": _hash_token(invite.token),
            "created_ms": now_ms,
            "expires_ms": invite.expires_ms,
            "hardware": json.dumps(asked.hardware) if asked.hardware else "",
            "replace": int(asked.replace),
        }
        with self._engine.begin() as connection:
            connection.execute(_invites.delete().where(_invites.c.expires_ms < now_ms - 86_400_000))
            if _count_open_rows(connection) >= MAX_OPEN_INVITES:
                raise RegistryError(f"{MAX_OPEN_INVITES} invites are open: let some expire first")
            connection.execute(_invites.insert().values(row))
        return invite

    def open_invite(self, token: str, now_ms: int, hardware: str = "", signing: bytes = b"") -> str | InviteFault:
        """Device that a token invites, or why it is refused. Does not use the token up: `enrol` does.

        A used token is still accepted with the very key (`signing`, raw) that used it, while its device is active,
        since the reply may have been lost.
        """
        return self._judge_invite(self._find_invite(token), now_ms, hardware, signing)

    def _find_invite(self, token: str) -> sa.Row[Any] | None:
        with read_snapshot(self._engine) as connection:
            return connection.execute(_invites.select().where(_invites.c.token_hash == _hash_token(token))).first()

    def _judge_invite(self, row: sa.Row[Any] | None, now_ms: int, hardware: str, signing: bytes) -> str | InviteFault:
        if row is None:
            return InviteFault.UNKNOWN
        known = self._devices.get(row.device)
        if row.used_ms is not None and not _is_same_key(known, signing):
            return InviteFault.USED
        if row.expires_ms <= now_ms:
            return InviteFault.EXPIRED
        if not may_be_invited(known.state if known else None, replace=bool(row.replace)):
            return InviteFault.BLOCKED
        return InviteFault.HARDWARE if row.hardware and hardware not in json.loads(row.hardware) else str(row.device)

    def enrol(self, token: str, keys: DeviceKeys, now_ms: int) -> EnrolledDevice | InviteFault:
        """Use up a token and write the device in one transaction; a second use with another key changes nothing."""
        invite = self._find_invite(token)
        invited = self._judge_invite(invite, now_ms, keys.hardware, keys.signing)
        if invite is None or isinstance(invited, InviteFault):
            return InviteFault(invited)
        row = _device_row(invited, keys, now_ms)
        row |= {"device_class": invite.device_class, "region": invite.region}
        # As it was read: another hub may be given the same token at this moment, and one of them is too late.
        mine = (_invites.c.token_hash == invite.token_hash, _invites.c.used_ms.is_not_distinct_from(invite.used_ms))
        with self._engine.begin() as connection:
            if connection.execute(_invites.update().where(*mine).values(used_ms=now_ms)).rowcount != 1:
                return InviteFault.USED
            write_rows(connection, _devices, [row])
            revision = record_change(connection, Topic.DEVICES, (invited,))
        return self._keep_own(_parse_device(row), revision)

    def count_open_invites(self, now_ms: int) -> int:
        """Number of invites that are neither used nor expired."""
        usable = (_invites.c.used_ms.is_(None), _invites.c.expires_ms > now_ms)
        with read_snapshot(self._engine) as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(_invites).where(*usable)).scalar_one()

    # Life cycle of a device

    def record_renewal(self, device: str, keys: DeviceKeys) -> EnrolledDevice:
        """Record a renewed certificate; the device's own keys stay. RegistryError if the device is unknown."""
        values = {"serial": keys.serial, "certificate_ends_ms": keys.certificate_ends_ms, "authority": keys.authority}
        found = self._devices.get(device)
        return self._update_device(device, values, found.state if found else None)

    def set_state(
        self,
        device: str,
        state: DeviceState,
        now_ms: int,
        because: StateReason = StateReason.OPERATOR,
        drain_s: float = 0.0,
    ) -> EnrolledDevice:
        """Change a device's state; the same state changes nothing.

        RegistryError if the device is unknown or the transition is not allowed. `drain_s`: how long a retiring device
        still gets its outstanding answers.
        """
        found = self._devices.get(device)
        if found is None:
            raise RegistryError(f"no device {device!r}")
        if found.state is state:
            return found
        if not may_become(found.state, state):
            raise RegistryError(f"{device!r} {explain_refusal(found.state, state)}")
        retire_at_ms = now_ms + int(drain_s * 1000) if state is DeviceState.RETIRING else 0
        values = {"state": state.value, "changed_ms": now_ms, "why": because.value, "retire_at_ms": retire_at_ms}
        return self._update_device(device, values, found.state)

    def suspect(self, device: str, now_ms: int) -> bool:
        """Suspend a device whose keys two machines use. False if there was nothing to suspend."""
        found = self._devices.get(device)
        if found is None or not found.heard:
            return False
        self.set_state(device, DeviceState.SUSPENDED, now_ms, StateReason.CLONE_SUSPECT)
        return True

    def list_suspects(self) -> tuple[str, ...]:
        """Devices that are suspended as possible clones."""
        return tuple(
            each.id
            for each in self.devices()
            if each.state is DeviceState.SUSPENDED and each.why == StateReason.CLONE_SUSPECT
        )

    def record_retirement(self, device: str, ledger_sha256: str, now_ms: int) -> EnrolledDevice:
        """Record that a device retired itself and exported its ledger. RegistryError if it may not become retired."""
        self.set_state(device, DeviceState.RETIRED, now_ms, StateReason.DEVICE)
        return self._update_device(device, {"ledger": ledger_sha256})

    def end_retirements(self, now_ms: int) -> tuple[str, ...]:
        """Retire the retiring devices whose drain time is over; returns their ids."""
        over = [d.id for d in self.devices() if d.state is DeviceState.RETIRING and d.retire_at_ms <= now_ms]
        for device in over:
            self.set_state(device, DeviceState.RETIRED, now_ms, StateReason.RETIREMENT_OVER)
        return tuple(over)

    def _update_device(self, device: str, values: dict[str, Any], known: DeviceState | None = None) -> EnrolledDevice:
        """Change a device; `known`: only from this state. RegistryError if another hub has changed that meanwhile."""
        if device not in self._devices:
            raise RegistryError(f"no device {device!r}")
        mine = _devices.c.id == device
        still = (mine, _devices.c.state == known.value) if known else (mine,)
        with self._engine.begin() as connection:
            if not connection.execute(_devices.update().where(*still).values(values)).rowcount:
                raise RegistryError(f"{device!r} was changed by another hub just now: look at it again")
            row = connection.execute(_devices.select().where(mine)).mappings().one()
            revision = record_change(connection, Topic.DEVICES, (device,))
        return self._keep_own(_parse_device(dict(row)), revision)

    def _keep_own(self, device: EnrolledDevice, revision: int) -> EnrolledDevice:
        """Keep a device as this hub has just written it."""
        self._written[device.id] = revision
        self._devices[device.id] = device
        return device

    def _check_invitable(self, asked: DeviceInvitation) -> None:
        split_device_id(asked.device)
        known = self._devices.get(asked.device)
        if known and not may_be_invited(known.state, replace=asked.replace):
            hint = "; --replace lets it enrol anew" if known.state is DeviceState.SUSPENDED else ""
            raise RegistryError(f"{asked.device!r} is {known.state}: it cannot be invited{hint}")
        if len(asked.hardware) > MAX_HARDWARE:
            raise RegistryError(f"{len(asked.hardware)} serial numbers, at most {MAX_HARDWARE}")
        for word in (*asked.hardware, *filter(None, (asked.device_class, asked.region))):
            check_hardware(word)


def read_devices(connection: sa.Connection, ids: Collection[str] | None = None) -> list[EnrolledDevice]:
    """Devices with these ids, or all of them."""
    query = _devices.select() if ids is None else _devices.select().where(_devices.c.id.in_(ids))
    return [_parse_device(dict(row)) for row in connection.execute(query).mappings()]


def check_hardware(serial: str) -> str:
    """Check a hardware serial number: printable ASCII of bounded length. RegistryError otherwise."""
    if not serial or len(serial) > MAX_HARDWARE_CHARS or not serial.isascii() or not serial.isprintable():
        raise RegistryError(f"serial number {serial[:80]!r}: 1 to {MAX_HARDWARE_CHARS} printable ASCII characters")
    return serial


def split_device_id(device: str) -> tuple[str, str]:
    """Split a device id into (tenant, name). RegistryError if it is not valid."""
    try:
        tenant, separator, name = validate_device_id(device).partition("--")
        if not separator or join_device_id(tenant, name) != device:
            raise RegistryError(f"device id {device!r}: write it as tenant--name")
    except LocalError as error:
        raise RegistryError(str(error)) from None
    return tenant, name


def _is_same_key(known: EnrolledDevice | None, signing: bytes) -> bool:
    return known is not None and known.active and known.signing_key.public_bytes_raw() == signing


def _hash_token(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _count_open_rows(connection: sa.Connection) -> int:
    unused = _invites.c.used_ms.is_(None)
    return connection.execute(sa.select(sa.func.count()).select_from(_invites).where(unused)).scalar_one()


def _device_row(device: str, keys: DeviceKeys, now_ms: int) -> dict[str, Any]:
    return {
        "id": device,
        "state": DeviceState.ACTIVE.value,
        "signing_key": keys.signing,
        "hpke_key": keys.hpke,
        "serial": keys.serial,
        "certificate_ends_ms": keys.certificate_ends_ms,
        "enrolled_ms": now_ms,
        "changed_ms": now_ms,
        "why": StateReason.ENROLLED.value,
        "authority": keys.authority,
        "hardware": keys.hardware,
        "retire_at_ms": 0,
        "ledger": "",
    }


def _parse_device(row: dict[str, Any]) -> EnrolledDevice:
    parsed = {
        "state": DeviceState(row["state"]),
        "signing_key": Ed25519PublicKey.from_public_bytes(row["signing_key"]),
        "hpke_key": X25519PublicKey.from_public_bytes(row["hpke_key"]),
    }
    return EnrolledDevice(**{**row, **parsed})
