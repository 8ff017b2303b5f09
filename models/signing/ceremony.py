"""Operations on the repository's offline roles: begin a repository, replace keys, add a family, renew metadata.

Rule: each operation gives one `SigningRequest` of new versions on top of the hub's state; nothing is signed or written
here. Keys are made by `draw` (a key folder, or memory for a demo), so a private key is never in a request.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from securesystemslib.signer import Key
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Role, Root, Targets

from models.signing.request import ChangedMetadata, RepositoryState, RequestError, SigningRequest, build_successor
from models.signing.review import delegated_roles, display_name
from models.signing.roles import (
    FLEET_THRESHOLDS,
    KEYS,
    ONLINE,
    POLICY,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    TOP_LEVEL,
    KeyThresholds,
    expiry_for,
    is_delegated,
    model_role,
    path_pattern,
)

DrawKey = Callable[[str], Key]  # role -> the public half of a key drawn for it


@dataclass(frozen=True)
class RepositoryPlan:
    """Plan of a new repository. Roles for which the hub offers a key are signed at the hub, all others offline."""

    fleet: KeyThresholds = FLEET_THRESHOLDS
    families: tuple[str, ...] = ()

    def delegated_to(self, online: Iterable[str]) -> tuple[str, ...]:
        """List the delegated roles, `online` being those that the hub offers keys for."""
        held = [role for role in online if role not in TOP_LEVEL]
        return tuple(dict.fromkeys([KEYS, POLICY, *map(model_role, self.families), *held]))


def begin_repository(state: RepositoryState, plan: RepositoryPlan, draw: DrawKey, now: datetime) -> SigningRequest:
    """Begin a repository: root 1, targets 1, and version 1 of every role signed offline.

    RequestError if there is a root already, or the hub offers no key for snapshot or timestamp.
    """
    if state.roots:
        raise RequestError(f"the hub has root {len(state.roots)} already: `skerry keys rotate` changes it")
    for role in ONLINE:
        if role not in state.online:
            raise RequestError(f"the hub's file offers no key for {role}")
    root = Root(expires=expiry_for(ROOT, now), consistent_snapshot=True)
    fleet = plan.fleet
    _assign_keys(root, ROOT, [draw(ROOT) for _ in range(fleet.root_keys)], fleet.root_threshold)
    _assign_keys(root, TARGETS, [draw(TARGETS) for _ in range(fleet.targets_keys)], fleet.targets_threshold)
    for role in ONLINE:
        _assign_keys(root, role, [state.online[role]], 1)
    targets = Targets(expires=expiry_for(TARGETS, now), delegations=Delegations({}, {}))
    changes: dict[str, ChangedMetadata] = {ROOT: Metadata(root), TARGETS: Metadata(targets)}
    for role in plan.delegated_to(state.online):
        changes |= _add_delegation(targets, role, state, draw, now)
    return SigningRequest(state, changes)


@dataclass(frozen=True)
class KeyRotation:
    """Key rotation: whose keys are replaced.

    `dropped`: names or ids of the keys that go; empty = all of the roles' keys.
    """

    roles: tuple[str, ...]
    dropped: frozenset[str] = frozenset()


def rotate_keys(state: RepositoryState, rotation: KeyRotation, draw: DrawKey, now: datetime) -> SigningRequest:
    """Replace keys of roles. Those of the hub's roles come from the hub's file: it must offer fresh ones."""
    changes: dict[str, ChangedMetadata] = {}
    if any(role in TOP_LEVEL for role in rotation.roles):
        changes[ROOT] = _new_root(state, now)
    if any(role == TARGETS or role not in TOP_LEVEL for role in rotation.roles):
        changes[TARGETS] = _renew_role(state, TARGETS, now)
    request = SigningRequest(state, changes)
    for role in rotation.roles:
        changes |= _replace_keys(request, role, rotation, draw, now)
    return request


def add_family(state: RepositoryState, family: str, draw: DrawKey, now: datetime) -> SigningRequest:
    """Add a delegation for one more model family. RequestError if it is there already."""
    role = model_role(family)
    if state.targets is None:
        raise RequestError("the hub has no root yet: `skerry keys init` first")
    if role in delegated_roles(state.targets):
        raise RequestError(f"{role} is there already")
    changes: dict[str, ChangedMetadata] = {TARGETS: _renew_role(state, TARGETS, now)}
    request = SigningRequest(state, changes)
    changes |= _add_delegation(request.targets, role, state, draw, now)
    return request


def renew_roles(state: RepositoryState, roles: Iterable[str], now: datetime) -> SigningRequest:
    """Renew roles: the same content with a new expiry. Roles that the hub signs need none of this."""
    changes: dict[str, ChangedMetadata] = {}
    for role in roles:
        changes[role] = _new_root(state, now) if role == ROOT else _renew_role(state, role, now)
    return SigningRequest(state, changes)


def list_offline_roles(state: RepositoryState) -> tuple[str, ...]:
    """List the roles that people sign: all but those whose every key the hub offers."""
    if state.root is None or state.targets is None:
        return ()
    at_hub = {key.keyid for key in state.online.values()}
    offline = [role for role, found in delegated_roles(state.targets).items() if not set(found.keyids) <= at_hub]
    return (ROOT, TARGETS, *sorted(offline))


def _assign_keys(root: Root, role: str, keys: list[Key], threshold: int) -> None:
    root.roles[role] = Role([], threshold)
    for key in keys:
        root.add_key(key, role)


def _add_delegation(
    targets: Targets, role: str, state: RepositoryState, draw: DrawKey, now: datetime
) -> Mapping[str, ChangedMetadata]:
    """Add a delegation, and an empty first version for a role that is signed offline; the hub signs its own."""
    if not is_delegated(role):
        raise RequestError(f"{role}: not a delegated role of this repository")
    key = state.online.get(role) or draw(role)
    if targets.delegations is None or targets.delegations.roles is None:
        raise RequestError(
            "targets delegates by hash bins or not at all: this repository was not made by `skerry keys init`"
        )
    targets.delegations.roles[role] = DelegatedRole(role, [], 1, terminating=True, paths=[path_pattern(role)])
    targets.add_key(key, role)
    return {} if role in state.online else {role: Metadata(Targets(expires=expiry_for(role, now)))}


def _new_root(state: RepositoryState, now: datetime) -> Metadata[Root]:
    if not state.roots:
        raise RequestError("the hub has no root yet: `skerry keys init` makes the first")
    fresh = build_successor(state.roots[-1])
    fresh.signed.expires = expiry_for(ROOT, now)
    return fresh


def _renew_role(state: RepositoryState, role: str, now: datetime) -> Metadata[Targets]:
    if role not in state.base:
        raise RequestError(f"{role}: the hub has no such role")
    fresh = build_successor(state.base[role])
    fresh.signed.expires = expiry_for(role, now)
    return fresh


def _replace_keys(
    request: SigningRequest, role: str, rotation: KeyRotation, draw: DrawKey, now: datetime
) -> Mapping[str, ChangedMetadata]:
    over: Root | Targets = request.root if role in TOP_LEVEL else request.targets
    try:
        held = over.get_delegated_role(role)
        old = {keyid: over.get_key(keyid) for keyid in held.keyids}
    except ValueError:
        raise RequestError(f"{role}: the hub has no such role") from None
    gone = [
        keyid for keyid, key in old.items() if not rotation.dropped or rotation.dropped & {keyid, display_name(key)}
    ]
    for keyid in gone:
        fresh = _fresh_key(request.state, role, old, draw)
        over.revoke_key(keyid, role)
        over.add_key(fresh, role)
    if not gone:
        raise RequestError(f"{role}: no key of it is named {', '.join(sorted(rotation.dropped))}")
    signed_by_hub = role in TOP_LEVEL or role in request.state.online
    return {} if signed_by_hub else {role: _renew_role(request.state, role, now)}


def _fresh_key(state: RepositoryState, role: str, old: Mapping[str, Key], draw: DrawKey) -> Key:
    if role not in (SNAPSHOT, TIMESTAMP) and role not in state.online:
        return draw(role)
    offered = state.online.get(role)
    if offered is None or offered.keyid in old:
        raise RequestError(f"the hub's file offers no fresh key for {role}: `skerry repository export --new {role}`")
    return offered
