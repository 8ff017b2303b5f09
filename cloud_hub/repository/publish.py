"""Publishing to the update repository: bundles, policies, hub keys and downgrade permits, with paths and versions.

Rule: what was published under a version is never replaced by something else; a later thing has a higher version. Bytes
are placed first, listed second: a role that lists a target lists one that is there.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from securesystemslib.signer import CryptoSigner, Key
from tuf.api.metadata import TargetFile, Targets

from cloud_hub.repository.repository import Edit, Repository
from cloud_hub.repository.signing_keys import ALWAYS
from cloud_hub.security.hub_keys import HubCard
from models.bundle.archive import pack
from models.bundle.bundle import open_bundle
from models.bundle.manifest import EDGE_FILE
from models.signing.operations import Plan, begin
from models.signing.request import Request, RequestError, sign
from models.signing.review import REVOKED
from models.signing.roles import (
    KEYS,
    POLICY,
    SMALL,
    TARGETS,
    Permit,
    keys_path,
    may_list,
    model_path,
    model_role,
    policy_path,
    read_permit,
)
from models.verification.lint import lint
from policies.language.document import PolicyError, parse

MIN_AGENT = "0.1.0"  # the first agent that knows this layout
HUB_KEY_LIFE = timedelta(days=14)  # how long a published hub key will be able to open questions at least
_HUB_KEY_DUE = timedelta(days=7)
MAX_DOCUMENT_BYTES = 1 << 20


@dataclass(frozen=True)
class Published:
    """Outcome of a publication: the target's path, version and SHA-256.

    `request`: has to be signed where the offline keys are; None = devices can fetch the target now.
    `new` false = the same bytes were published already.
    """

    path: str
    version: int
    sha256: str
    request: Request | None = None
    new: bool = True


@dataclass(frozen=True)
class Item:
    """One target about to be published, with the role that lists it."""

    role: str
    path: str
    data: bytes
    custom: dict[str, Any]
    steady: bool = False  # the path itself names the version: what it holds never changes


def publish_bundle(repository: Repository, folder: Path, now: datetime) -> Published:
    """Publish a verified bundle as `models/{family}/{family}-{version}.skb`.

    BundleError if the bundle is unsound, RequestError if it may not be published.
    """
    bundle = open_bundle(folder)
    lint(bundle.read(EDGE_FILE))
    manifest = bundle.manifest
    custom = {"version": manifest.version, "min_agent": MIN_AGENT, "target": msgspec.to_builtins(manifest.target)}
    path = model_path(manifest.name, manifest.version)
    return _publish(repository, Item(_family(manifest.name), path, pack(bundle), custom, steady=True), now)


def publish_policy(repository: Repository, document: bytes, now: datetime) -> Published:
    """Publish a sound policy that has not expired as `policy/{name}.toml`.

    PolicyError or RequestError if it may not be.
    """
    policy = parse(document.decode()).compile()
    if policy.expires < now.date().isoformat():
        raise PolicyError(f"expired on {policy.expires}: nothing may leave under it; set issued and a higher version")
    return _publish(repository, Item(POLICY, policy_path(policy.name), document, {"version": policy.version}), now)


def publish_hub_keys(repository: Repository, card: HubCard, serial: int, now: datetime) -> Published | None:
    """Publish the hub's keys among those of its region, valid for 14 days.

    None while the same keys are published and valid for more than 7 days. `serial` counts the hub's HPKE keys. Other
    hubs of the region stay as they are.
    """
    path = keys_path(card.region)
    with repository.writing():
        info = _listed(repository, KEYS, path)
        held = json.loads(repository.shelf.target(info) or b"{}") if info else {}
        entry = _entry(card, serial, now)
        hubs = {hub["name"]: hub for hub in held.get("hubs", [])}
        mine = hubs.get(card.name, {})
        if _same(mine, entry) and mine["not_after_ms"] - _ms(now) > _ms_of(_HUB_KEY_DUE):
            return None
        hubs[card.name] = entry
        version = int(held.get("version", 0)) + 1
        values = {"region": card.region, "version": version, "hubs": [hubs[name] for name in sorted(hubs)]}
        data = json.dumps(values, indent=1, sort_keys=True).encode() + b"\n"
        return _publish(repository, Item(KEYS, path, data, {"version": version}), now)


def publish_permit(repository: Repository, permit: Permit, now: datetime) -> Published:
    """Publish a permit under which devices may install an older version.

    Always returns a request to be signed: no hub key may sign for the targets role. RequestError if the permit is
    unsound.
    """
    try:
        read_permit(permit.path, permit.custom())
    except ValueError as error:
        raise RequestError(str(error)) from None
    if permit.expires_ms <= _ms(now):
        raise RequestError("a permit that has ended already")
    data = msgspec.json.format(msgspec.json.encode(permit), indent=1) + b"\n"  # for people; the signed metadata counts
    return _publish(repository, Item(TARGETS, permit.path, data, permit.custom()), now)


def permits(repository: Repository, family: str) -> dict[str, Permit]:
    """Return the published downgrade permits of a family by path, expired ones included."""
    standing = repository.state().base.get(TARGETS)
    files = standing.signed.targets if standing else {}
    found = {path: read_permit(path, info.custom) for path, info in files.items()}
    return {path: permit for path, permit in found.items() if permit.family == family}


def withdraw(repository: Repository, path: str, now: datetime) -> Published:
    """Remove a target from its role, so that nobody installs it any longer. RequestError if nobody lists it."""
    return _edited(repository, path, lambda targets: targets.targets.pop(path), now)


def revoke(repository: Repository, path: str, now: datetime) -> Published:
    """Mark a target as revoked, so that devices that run it leave it. RequestError if nobody lists it."""
    return _edited(repository, path, lambda targets: _mark(targets.targets[path]), now)


def _edited(repository: Repository, path: str, edit: Edit, now: datetime) -> Published:
    standing = repository.state().base
    role = next((role for role, found in standing.items() if path in found.signed.targets), "")
    if not role:
        raise RequestError(f"{path}: nothing of that name is published")
    info = standing[role].signed.targets[path]
    version, digest = _version(info), str(info.hashes["sha256"])
    return Published(path, version, digest, repository.amend(role, edit, now))


def _mark(info: TargetFile) -> None:
    info.unrecognized_fields["custom"] = {**info.custom, REVOKED: True}


def found_demo(
    repository: Repository, card: HubCard, bundles: Sequence[Path], policies: Sequence[bytes], now: datetime
) -> bytes:
    """Create a whole repository for a demo or a test: a small fleet, with every family and policy signed here.

    Root and targets keys are drawn in memory and forgotten: nobody can ever change this root. Returns root 1.
    """
    families = tuple(dict.fromkeys(open_bundle(folder).manifest.name for folder in bundles))
    repository.online.ensure((*ALWAYS, POLICY, *map(_family, families)))
    drawn: list[CryptoSigner] = []

    def draw(_role: str) -> Key:
        drawn.append(CryptoSigner.generate_ed25519())
        return drawn[-1].public_key

    request = begin(repository.state(), Plan(SMALL, families), draw, now)
    sign(request, drawn)
    repository.install(request, now)
    publish_hub_keys(repository, card, 1, now)
    for folder in bundles:
        publish_bundle(repository, folder, now)
    for document in policies:
        publish_policy(repository, document, now)
    return repository.root()


def _publish(repository: Repository, item: Item, now: datetime) -> Published:
    if not may_list(item.role, item.path):
        raise RequestError(f"{item.path!r} cannot be a path: small letters, digits, dash, underscore, dots inside")
    with repository.writing():
        info = repository.shelf.place(item.path, item.data)
        info.unrecognized_fields["custom"] = item.custom
        version, digest = int(item.custom["version"]), info.hashes["sha256"]
        before = _listed(repository, item.role, item.path)
        if before and before.hashes == info.hashes:
            return Published(item.path, version, digest, new=False)
        if before and (item.steady or _version(before) >= version):
            raise RequestError(f"{item.path}: version {_version(before)} is published already; raise the version")

        def edit(targets: Targets) -> None:
            targets.targets[item.path] = info

        return Published(item.path, version, digest, repository.amend(item.role, edit, now))


def _listed(repository: Repository, role: str, path: str) -> TargetFile | None:
    standing = repository.state().base.get(role)
    return standing.signed.targets.get(path) if standing else None


def _version(info: TargetFile) -> int:
    return int(info.custom["version"])


def _family(name: str) -> str:
    try:
        return model_role(name)
    except ValueError as error:
        raise RequestError(str(error)) from None


def _entry(card: HubCard, serial: int, now: datetime) -> dict[str, Any]:
    return {
        "name": card.name,
        "region": card.region,
        "hpke_key": base64.b64encode(card.hpke_key).decode(),
        "signing_key": base64.b64encode(card.signing_key).decode(),
        "not_after_ms": _ms(now + HUB_KEY_LIFE),
        "serial": serial,
    }


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return {**one, "not_after_ms": 0} == {**other, "not_after_ms": 0}


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _ms_of(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)
