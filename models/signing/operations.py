"""Operations on the repository's offline roles: begin a repository, replace keys, add a family, renew metadata.

Rule: each operation gives one `Request` of new versions on top of the hub's state; nothing is signed or written here.
Keys are made by `draw` (a key folder, or memory for a demo), so a private key is never in a request.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from securesystemslib.signer import Key
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Role, Root, Targets

from models.signing.request import Changed, Request, RequestError, State, successor
from models.signing.review import delegated, key_name
from models.signing.roles import (
    FLEET,
    KEYS,
    ONLINE,
    POLICY,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    TOP_LEVEL,
    Fleet,
    expiry,
    is_delegated,
    model_role,
    pattern,
)

Draw = Callable[[str], Key]  # role -> the public half of a key drawn for it


@dataclass(frozen=True)
class Plan:
    """Plan of a new repository. Roles for which the hub offers a key are signed at the hub, all others offline."""

    fleet: Fleet = FLEET
    families: tuple[str, ...] = ()

    def delegated(self, online: Iterable[str]) -> tuple[str, ...]:
        """List the delegated roles, `online` being those that the hub offers keys for."""
        held = [role for role in online if role not in TOP_LEVEL]
        return tuple(dict.fromkeys([KEYS, POLICY, *map(model_role, self.families), *held]))


def begin(state: State, plan: Plan, draw: Draw, now: datetime) -> Request:
    """Begin a repository: root 1, targets 1, and version 1 of every role signed offline.

    RequestError if there is a root already, or the hub offers no key for snapshot or timestamp.
    """
    if state.roots:
        raise RequestError(f"the hub has root {len(state.roots)} already: `skerry keys rotate` changes it")
    for role in ONLINE:
        if role not in state.online:
            raise RequestError(f"the hub's file offers no key for {role}")
    root = Root(expires=expiry(ROOT, now), consistent_snapshot=True)
    fleet = plan.fleet
    _staff(root, ROOT, [draw(ROOT) for _ in range(fleet.root_keys)], fleet.root_threshold)
    _staff(root, TARGETS, [draw(TARGETS) for _ in range(fleet.targets_keys)], fleet.targets_threshold)
    for role in ONLINE:
        _staff(root, role, [state.online[role]], 1)
    targets = Targets(expires=expiry(TARGETS, now), delegations=Delegations({}, {}))
    changes: dict[str, Changed] = {ROOT: Metadata(root), TARGETS: Metadata(targets)}
    for role in plan.delegated(state.online):
        changes |= _delegate(targets, role, state, draw, now)
    return Request(state, changes)


@dataclass(frozen=True)
class Rotation:
    """Key rotation: whose keys are replaced.

    `dropped`: names or ids of the keys that go; empty = all of the roles' keys.
    """

    roles: tuple[str, ...]
    dropped: frozenset[str] = frozenset()


def rotate(state: State, rotation: Rotation, draw: Draw, now: datetime) -> Request:
    """Replace keys of roles. Those of the hub's roles come from the hub's file: it must offer fresh ones."""
    changes: dict[str, Changed] = {}
    if any(role in TOP_LEVEL for role in rotation.roles):
        changes[ROOT] = _new_root(state, now)
    if any(role == TARGETS or role not in TOP_LEVEL for role in rotation.roles):
        changes[TARGETS] = _renewed(state, TARGETS, now)
    request = Request(state, changes)
    for role in rotation.roles:
        changes |= _replace(request, role, rotation, draw, now)
    return request


def add_family(state: State, family: str, draw: Draw, now: datetime) -> Request:
    """Add a delegation for one more model family. RequestError if it is there already."""
    role = model_role(family)
    if state.targets is None:
        raise RequestError("the hub has no root yet: `skerry keys init` first")
    if role in delegated(state.targets):
        raise RequestError(f"{role} is there already")
    changes: dict[str, Changed] = {TARGETS: _renewed(state, TARGETS, now)}
    request = Request(state, changes)
    changes |= _delegate(request.targets, role, state, draw, now)
    return request


def renew(state: State, roles: Iterable[str], now: datetime) -> Request:
    """Renew roles: the same content with a new expiry. Roles that the hub signs need none of this."""
    changes: dict[str, Changed] = {}
    for role in roles:
        changes[role] = _new_root(state, now) if role == ROOT else _renewed(state, role, now)
    return Request(state, changes)


def offline_roles(state: State) -> tuple[str, ...]:
    """List the roles that people sign: all but those whose every key the hub offers."""
    if state.root is None or state.targets is None:
        return ()
    at_hub = {key.keyid for key in state.online.values()}
    offline = [role for role, found in delegated(state.targets).items() if not set(found.keyids) <= at_hub]
    return (ROOT, TARGETS, *sorted(offline))


def _staff(root: Root, role: str, keys: list[Key], threshold: int) -> None:
    root.roles[role] = Role([], threshold)
    for key in keys:
        root.add_key(key, role)


def _delegate(targets: Targets, role: str, state: State, draw: Draw, now: datetime) -> Mapping[str, Changed]:
    """Add a delegation, and an empty first version for a role that is signed offline; the hub signs its own."""
    if not is_delegated(role):
        raise RequestError(f"{role}: not a delegated role of this repository")
    key = state.online.get(role) or draw(role)
    if targets.delegations is None or targets.delegations.roles is None:
        raise RequestError(
            "targets delegates by hash bins or not at all: this repository was not made by `skerry keys init`"
        )
    targets.delegations.roles[role] = DelegatedRole(role, [], 1, terminating=True, paths=[pattern(role)])
    targets.add_key(key, role)
    return {} if role in state.online else {role: Metadata(Targets(expires=expiry(role, now)))}


def _new_root(state: State, now: datetime) -> Metadata[Root]:
    if not state.roots:
        raise RequestError("the hub has no root yet: `skerry keys init` makes the first")
    fresh = successor(state.roots[-1])
    fresh.signed.expires = expiry(ROOT, now)
    return fresh


def _renewed(state: State, role: str, now: datetime) -> Metadata[Targets]:
    if role not in state.base:
        raise RequestError(f"{role}: the hub has no such role")
    fresh = successor(state.base[role])
    fresh.signed.expires = expiry(role, now)
    return fresh


def _replace(request: Request, role: str, rotation: Rotation, draw: Draw, now: datetime) -> Mapping[str, Changed]:
    over: Root | Targets = request.root if role in TOP_LEVEL else request.targets
    try:
        held = over.get_delegated_role(role)
        old = {keyid: over.get_key(keyid) for keyid in held.keyids}
    except ValueError:
        raise RequestError(f"{role}: the hub has no such role") from None
    gone = [keyid for keyid, key in old.items() if not rotation.dropped or rotation.dropped & {keyid, key_name(key)}]
    for keyid in gone:
        fresh = _fresh(request.state, role, old, draw)
        over.revoke_key(keyid, role)
        over.add_key(fresh, role)
    if not gone:
        raise RequestError(f"{role}: no key of it is named {', '.join(sorted(rotation.dropped))}")
    signed_by_hub = role in TOP_LEVEL or role in request.state.online
    return {} if signed_by_hub else {role: _renewed(request.state, role, now)}


def _fresh(state: State, role: str, old: Mapping[str, Key], draw: Draw) -> Key:
    if role not in (SNAPSHOT, TIMESTAMP) and role not in state.online:
        return draw(role)
    offered = state.online.get(role)
    if offered is None or offered.keyid in old:
        raise RequestError(f"the hub's file offers no fresh key for {role}: `skerry repository export --new {role}`")
    return offered
