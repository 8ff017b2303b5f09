"""Publishing to the update repository: bundles, policies, hub keys and downgrade permits, with paths and versions.

Rule: what was published under a version is never replaced by something else; a later thing has a higher version. Bytes
are placed first, listed second: a role that lists a target lists one that is there. A bundle and its hub part are
listed, withdrawn and revoked in one change.
"""

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from securesystemslib.signer import CryptoSigner, Key
from tuf.api.metadata import TargetFile, Targets

from cloud_hub.repository.halves import HubTarget, read_hub_target, take_hub_part
from cloud_hub.repository.parts import ByteProgress, ignore_progress
from cloud_hub.repository.repository import Repository, TargetsEdit
from cloud_hub.repository.signing_keys import DEFAULT_ROLES
from cloud_hub.security.hub_keys import HubCard
from models.bundle.archive import pack_bundle
from models.bundle.bundle import Bundle, open_bundle
from models.bundle.hub_part import HubKind, HubPart
from models.bundle.manifest import EDGE_FILE
from models.bundle.text_part import read_text_template
from models.signing.ceremony import RepositoryPlan, begin_repository
from models.signing.request import RequestError, SigningRequest, add_signatures
from models.signing.review import REVOKED_FIELD
from models.signing.roles import (
    HUB_FIELD,
    INTERFACE_FIELD,
    KEYS,
    POLICY,
    SMALL_THRESHOLDS,
    TARGETS,
    Permit,
    bundle_path_of,
    hub_path,
    is_hub_path,
    keys_path,
    may_list_path,
    model_path,
    model_role,
    policy_path,
    read_permit,
)
from models.verification.lint import lint_graph
from policies.language.document import PolicyError, parse_policy

MIN_AGENT = "0.1.0"  # the first agent that knows this layout
HUB_KEY_LIFE = timedelta(days=14)  # how long a published hub key will be able to open questions at least
_HUB_KEY_DUE = timedelta(days=7)
MAX_DOCUMENT_BYTES = 1 << 20


@dataclass(frozen=True)
class PublishResult:
    """Outcome of a publication: the target's path, version and SHA-256.

    `request`: has to be signed where the offline keys are; None = devices can fetch the target now.
    `new` false = the same bytes were published already. `hub`: the hub part that is listed with a bundle.
    """

    path: str
    version: int
    sha256: str
    request: SigningRequest | None = None
    new: bool = True
    hub: HubTarget | None = None


@dataclass(frozen=True)
class TargetItem:
    """One target about to be published."""

    path: str
    data: bytes
    custom: dict[str, Any]
    steady: bool = False  # the path itself names the version: what it holds never changes


@dataclass(frozen=True)
class BundleOptions:
    """Options of publishing a bundle.

    `new_interface`: its signers allow devices to install it although its input, kind or labels differ from those of the
    model they run. `progress`: told how far the hashing and checking of a hub part is. `language_models`: names of
    those that the hub has, None = not known; a text model that asks another one is not published. `check_weights`
    false: the hub that loads it next checks its graphs and weights.
    """

    new_interface: bool = False
    progress: ByteProgress = ignore_progress
    language_models: Collection[str] | None = None
    check_weights: bool = True


DEFAULT_OPTIONS = BundleOptions()


def publish_bundle(
    repository: Repository, folder: Path, now: datetime, options: BundleOptions = DEFAULT_OPTIONS
) -> PublishResult:
    """Publish a verified bundle as `models/{family}/{family}-{version}.skb`, with its hub part beside it.

    `new_interface` may be added to what is published already. BundleError if the bundle is unsound, RequestError if it
    may not be published, ExitError(DISK) if the disk refuses; then nothing is listed.
    """
    bundle = open_bundle(folder)
    lint_graph(bundle.read_file(EDGE_FILE))
    hub, role = read_hub_target(folder, bundle), _family_role(bundle.manifest.name)
    if hub:
        _check_language_model(hub.part, options.language_models)
        checked_as = bundle.manifest if options.check_weights else None
        take_hub_part(repository.shelf.parts, hub, checked_as, options.progress)  # before the lock: it may take minutes
    with repository.write_lock():
        if hub and not hub.is_placed(repository.shelf.parts):
            raise RequestError(f"{bundle.manifest.model}: files of its hub part went meanwhile: publish it again")
        _pin_committed(repository, bundle.manifest.name, now)
        published = _publish_items(repository, role, _bundle_items(bundle, hub, options), now)
        return replace(published, hub=hub)


def _check_language_model(part: HubPart, there: Collection[str] | None) -> None:
    """Check the template of a text model. BundleError if it is malformed, RequestError if nobody here answers it."""
    if part.manifest.kind is not HubKind.TEXT:
        return
    asked = read_text_template(part).llm
    if there is not None and asked not in there:
        known = ", ".join(sorted(there)) or "none"
        raise RequestError(
            f"{part.manifest.model} asks the language model {asked!r}, [[llm]] of hub.toml has {known}: add it there"
        )


def _bundle_items(bundle: Bundle, hub: HubTarget | None, options: BundleOptions) -> list["TargetItem"]:
    """Return the targets of a version: the packed bundle, then its hub part; each names the other."""
    manifest, packed = bundle.manifest, pack_bundle(bundle)
    custom = {"version": manifest.version, "min_agent": MIN_AGENT, "target": msgspec.to_builtins(manifest.target)}
    custom |= {INTERFACE_FIELD: True} if options.new_interface else {}
    custom |= {HUB_FIELD: hub.sha256} if hub else {}
    path = model_path(manifest.name, manifest.version)
    edge = TargetItem(path, packed, custom, steady=True)
    if hub is None:
        return [edge]
    return [edge, TargetItem(hub_path(path), hub.data, hub.custom_fields(sha256(packed).hexdigest()), steady=True)]


def publish_policy(repository: Repository, document: bytes, now: datetime) -> PublishResult:
    """Publish a sound policy that has not expired as `policy/{name}.toml`.

    PolicyError or RequestError if it may not be.
    """
    policy = parse_policy(document).compile()
    if policy.expires < now.date().isoformat():
        raise PolicyError(f"expired on {policy.expires}: nothing may leave under it; set issued and a higher version")
    item = TargetItem(policy_path(policy.name), document, {"version": policy.version})
    return _publish_items(repository, POLICY, [item], now)


def publish_hub_keys(
    repository: Repository, card: HubCard, serial: int, now: datetime, committed: Mapping[str, int] | None = None
) -> PublishResult | None:
    """Publish the hub's keys among those of its region, valid for 14 days, and what its fleet has committed.

    `committed`: version by model family, which a device without a model takes; None leaves it as it is. Returns None
    while the same is published and valid for more than 7 days. `serial` counts the hub's HPKE keys. Other hubs of the
    region stay as they are.
    """
    path = keys_path(card.region)
    with repository.write_lock():
        info = _find_listed(repository, KEYS, path)
        held = json.loads(repository.shelf.read_target(info) or b"{}") if info else {}
        entry = _build_hub_entry(card, serial, now)
        hubs = {hub["name"]: hub for hub in held.get("hubs", [])}
        mine = hubs.get(card.name, {})
        before = held.get("committed", {})
        committed = before if committed is None else dict(committed)
        same = _same_keys(mine, entry) and before == committed
        if same and mine["not_after_ms"] - _datetime_ms(now) > _timedelta_ms(_HUB_KEY_DUE):
            return None
        hubs[card.name] = entry
        version = int(held.get("version", 0)) + 1
        values = {"region": card.region, "version": version, "hubs": [hubs[name] for name in sorted(hubs)]}
        values |= {"committed": committed} if committed else {}
        data = json.dumps(values, indent=1, sort_keys=True).encode() + b"\n"
        return _publish_items(repository, KEYS, [TargetItem(path, data, {"version": version})], now)


def _pin_committed(repository: Repository, family: str, now: datetime) -> None:
    """Say in every region's key file that the newest version listed is the committed one, unless it says something.

    Before the next version is listed: no device may take that by itself.
    """
    standing = repository.read_state().base
    models, keys = standing.get(model_role(family)), standing.get(KEYS)
    bundles = models.signed.targets.values() if models else ()
    listed = [_read_version(info) for info in bundles if not info.custom.get(REVOKED_FIELD)]  # hub parts say the same
    for path, info in list(keys.signed.targets.items()) if keys and listed else []:
        file = json.loads(repository.shelf.read_target(info) or b"{}")
        if not file or family in file.get("committed", {}):
            continue
        file |= {"version": file["version"] + 1, "committed": {**file.get("committed", {}), family: max(listed)}}
        data = json.dumps(file, indent=1, sort_keys=True).encode() + b"\n"
        _publish_items(repository, KEYS, [TargetItem(path, data, {"version": file["version"]})], now)


def publish_permit(repository: Repository, permit: Permit, now: datetime) -> PublishResult:
    """Publish a permit under which devices may install an older version.

    Always returns a request to be signed: no hub key may sign for the targets role. RequestError if the permit is
    unsound.
    """
    try:
        read_permit(permit.path, permit.custom_fields())
    except ValueError as error:
        raise RequestError(str(error)) from None
    if permit.expires_ms <= _datetime_ms(now):
        raise RequestError("a permit that has ended already")
    data = msgspec.json.format(msgspec.json.encode(permit), indent=1) + b"\n"  # for people; the signed metadata counts
    return _publish_items(repository, TARGETS, [TargetItem(permit.path, data, permit.custom_fields())], now)


def list_permits(repository: Repository, family: str) -> dict[str, Permit]:
    """Return the published downgrade permits of a family by path, expired ones included."""
    standing = repository.read_state().base.get(TARGETS)
    files = standing.signed.targets if standing else {}
    found = {path: read_permit(path, info.custom) for path, info in files.items()}
    return {path: permit for path, permit in found.items() if permit.family == family}


def unlist_target(repository: Repository, path: str, now: datetime) -> PublishResult:
    """Remove a target from its role, a bundle with its hub part, so that nobody installs it any longer.

    RequestError if nobody lists it, or it is a hub part alone.
    """

    def remove(targets: Targets) -> None:
        for each in (path, hub_path(path)):
            targets.targets.pop(each, None)

    return _edit_target(repository, path, remove, now)


def revoke_published(repository: Repository, path: str, now: datetime) -> PublishResult:
    """Mark a target as revoked, a bundle with its hub part, so that devices that run it leave it.

    RequestError if nobody lists it, or it is a hub part alone.
    """

    def mark(targets: Targets) -> None:
        for each in {path, hub_path(path)} & targets.targets.keys():
            _mark_revoked(targets.targets[each])

    return _edit_target(repository, path, mark, now)


def _edit_target(repository: Repository, path: str, edit: TargetsEdit, now: datetime) -> PublishResult:
    if is_hub_path(path):
        raise RequestError(f"{path} is a hub part: name the bundle it belongs to, {bundle_path_of(path)}")
    standing = repository.read_state().base
    role = next((role for role, found in standing.items() if path in found.signed.targets), "")
    if not role:
        raise RequestError(f"{path}: nothing of that name is published")
    info = standing[role].signed.targets[path]
    version, digest = _read_version(info), str(info.hashes["sha256"])
    return PublishResult(path, version, digest, repository.amend_role(role, edit, now))


def _mark_revoked(info: TargetFile) -> None:
    info.unrecognized_fields["custom"] = {**info.custom, REVOKED_FIELD: True}


def create_demo_repository(
    repository: Repository, card: HubCard, bundles: Sequence[Path], policies: Sequence[bytes], now: datetime
) -> bytes:
    """Create a whole repository for a demo or a test: a small fleet, with every family and policy signed here.

    Root and targets keys are drawn in memory and forgotten: nobody can ever change this root. Returns root 1.
    """
    families = tuple(dict.fromkeys(open_bundle(folder).manifest.name for folder in bundles))
    repository.online.ensure_keys((*DEFAULT_ROLES, POLICY, *map(_family_role, families)))
    drawn: list[CryptoSigner] = []

    def draw(_role: str) -> Key:
        drawn.append(CryptoSigner.generate_ed25519())
        return drawn[-1].public_key

    request = begin_repository(repository.read_state(), RepositoryPlan(SMALL_THRESHOLDS, families), draw, now)
    add_signatures(request, drawn)
    repository.install_request(request, now)
    publish_hub_keys(repository, card, 1, now)
    for folder in bundles:
        publish_bundle(repository, folder, now, BundleOptions(check_weights=False))
    for document in policies:
        publish_policy(repository, document, now)
    return repository.read_root()


def _publish_items(repository: Repository, role: str, items: Sequence[TargetItem], now: datetime) -> PublishResult:
    """List targets of one role in one change. The result is of the first.

    RequestError, and nothing is listed, if one of them may not be.
    """
    for item in items:
        if not may_list_path(role, item.path):
            raise RequestError(f"{item.path!r} cannot be a path: small letters, digits, dash, underscore, dots inside")
    with repository.write_lock():
        infos = [repository.shelf.place_target(item.path, item.data) for item in items]
        new = [_settle_custom(repository, role, item, info) for item, info in zip(items, infos, strict=True)]
        first, digest = items[0], infos[0].hashes["sha256"]
        result = PublishResult(first.path, int(first.custom["version"]), digest, new=any(new))

        def edit(targets: Targets) -> None:
            targets.targets.update({info.path: info for info in infos})

        return replace(result, request=repository.amend_role(role, edit, now)) if any(new) else result


def _settle_custom(repository: Repository, role: str, item: TargetItem, info: TargetFile) -> bool:
    """Set the `custom` field of a target; false if the same is listed already.

    RequestError if something else is listed under its version.
    """
    info.unrecognized_fields["custom"] = item.custom
    before = _find_listed(repository, role, item.path)
    if before is None:
        return True
    if before.hashes == info.hashes:
        changed = bool(item.custom.get(INTERFACE_FIELD)) and not before.custom.get(INTERFACE_FIELD)
        info.unrecognized_fields["custom"] = {**before.custom, **({INTERFACE_FIELD: True} if changed else {})}
        return changed
    if item.steady or _read_version(before) >= int(item.custom["version"]):
        raise RequestError(f"{item.path}: version {_read_version(before)} is published already; raise the version")
    return True


def _find_listed(repository: Repository, role: str, path: str) -> TargetFile | None:
    standing = repository.read_state().base.get(role)
    return standing.signed.targets.get(path) if standing else None


def _read_version(info: TargetFile) -> int:
    return int(info.custom["version"])


def _family_role(name: str) -> str:
    try:
        return model_role(name)
    except ValueError as error:
        raise RequestError(str(error)) from None


def _build_hub_entry(card: HubCard, serial: int, now: datetime) -> dict[str, Any]:
    return {
        "name": card.name,
        "region": card.region,
        "hpke_key": base64.b64encode(card.hpke_key).decode(),
        "signing_key": base64.b64encode(card.signing_key).decode(),
        "not_after_ms": _datetime_ms(now + HUB_KEY_LIFE),
        "serial": serial,
    }


def _same_keys(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return {**one, "not_after_ms": 0} == {**other, "not_after_ms": 0}


def _datetime_ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _timedelta_ms(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)
