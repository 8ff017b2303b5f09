"""Review of a signing request: what of it may be signed or installed, and a description of what it does.

Used on the signing machine and at the hub alike.
Rule: nothing here signs, writes or asks. A hub that was taken over can send any request; this is what stands between it
and a signature: chain of roots, versions that only rise, lives no longer than the table, paths inside the role's own
folder, no key counted twice, no delegation beyond ours.
"""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from securesystemslib.signer import Key
from tuf.api.metadata import DelegatedRole, Metadata, Role, Root, TargetFile, Targets

from models.signing.keyring import NAME_FIELD
from models.signing.request import RepositoryState, RequestError, SigningRequest, is_verified
from models.signing.roles import (
    CLOCK_SLACK,
    EDGE_FIELD,
    FILES_FIELD,
    HUB_FIELD,
    HUB_PART,
    INTERFACE_FIELD,
    ONLINE,
    PART_FIELD,
    PERMITS,
    ROOT,
    SIZE_FIELD,
    TARGETS,
    TOP_LEVEL,
    bundle_path_of,
    hub_path,
    is_delegated,
    is_hub_path,
    may_list_path,
    path_pattern,
    read_permit,
    role_lifetime,
)

MAX_VERSION = 2**53
REVOKED_FIELD = "revoked"  # of a target's `custom`: true = no device may run it, also one that does already
_PRINTABLE_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_request(request: SigningRequest, trusted: Metadata[Root] | None, now: datetime) -> None:
    """Check a request before it is signed. RequestError for the first thing that is wrong.

    `trusted`: the newest root this machine knows, None for none yet.
    """
    check_state(request.state, trusted)
    if not request.changes:
        raise RequestError("the request changes nothing")
    for role, changed in request.changes.items():
        _check_expiry(role, changed.signed.expires, now)
        if isinstance(changed.signed, Root):
            _check_root(request.state.root, changed.signed)
        else:
            _check_version(role, request.state.base.get(role), changed.signed.version)
            _check_targets(request, role, changed.signed)


def check_state(state: RepositoryState, trusted: Metadata[Root] | None) -> None:
    """Check that a state follows from the root we trust. RequestError otherwise."""
    _check_chain(state.roots, trusted)
    for role, metadata in state.base.items():
        over = state.root if role == TARGETS else state.targets
        if over is None or not is_verified(over, role, metadata):
            raise RequestError(f"{role} as the hub has it is not signed by its keys")


def check_signatures(request: SigningRequest, at_hub: frozenset[str]) -> None:
    """Check that a device would accept the result: every role is signed by enough keys.

    Roles of `at_hub` are left out: the hub signs them itself.
    """
    for role, changed in request.changes.items():
        for delegator in request.delegators(role):
            if not is_verified(delegator, role, changed):
                raise RequestError(f"{role} {changed.signed.version} is not signed by enough keys: `skerry keys sign`")
    for role in delegated_roles(request.targets):
        standing = request.changes.get(role) or request.state.base.get(role)
        if role not in at_hub and (standing is None or not is_verified(request.targets, role, standing)):
            raise RequestError(f"{role} would be left without a valid signature")


def delegated_roles(targets: Targets) -> dict[str, DelegatedRole]:
    """Return the roles that the top-level targets delegate to, by name."""
    roles = targets.delegations.roles if targets.delegations else None
    return dict(roles or {})


def display_name(key: Key) -> str:
    """Return the name of a key; the start of its id where it has no name that may be shown on a terminal."""
    name = str(key.unrecognized_fields.get(NAME_FIELD, ""))
    return name if _PRINTABLE_NAME.fullmatch(name) else key.keyid[:8]


def describe_request(request: SigningRequest) -> list[str]:
    """Describe what signing a request does, one line for each change, dangerous ones first."""
    lines: list[str] = []
    for role, changed in sorted(request.changes.items(), key=lambda item: (item[0] != ROOT, item[0] != TARGETS)):
        lines.append(f"{role} {changed.signed.version}, valid until {changed.signed.expires:%Y-%m-%d}")
        before = request.state.root if role == ROOT else _signed_part(request.state.base.get(role))
        lines += [f"  {line}" for line in _describe_differences(before, changed.signed)]
    return lines


def _signed_part(metadata: Metadata[Targets] | None) -> Targets | None:
    return metadata.signed if metadata else None


def _describe_differences(before: Root | Targets | None, after: Root | Targets) -> Iterator[str]:
    old, new = _describe_holders(before), _describe_holders(after)
    for role in sorted(old.keys() | new.keys()):
        if old.get(role) != new.get(role):
            yield f"keys of {role}: {old.get(role, 'none')} -> {new.get(role, 'none')}"
    old_files = before.targets if isinstance(before, Targets) else {}
    new_files = after.targets if isinstance(after, Targets) else {}
    for path in sorted(old_files.keys() | new_files.keys()):
        if path not in new_files:
            yield f"withdraws {path}"
        elif path not in old_files or old_files[path] != new_files[path]:
            yield _describe_file(old_files.get(path), new_files[path])


def _describe_file(old: TargetFile | None, new: TargetFile) -> str:
    """Describe one changed file. `custom` is signed too: a version that jumps or a revoked model must not go unseen."""
    if new.path.startswith(f"{PERMITS}/"):
        return read_permit(new.path, new.custom).describe()
    verb = "adds" if old is None else "marks" if old.hashes == new.hashes else "replaces"
    said = json.dumps(new.custom, sort_keys=True)[:400]
    return f"{verb} {new.path} sha256 {_target_sha256(new)} {_describe_size(new)} {said}"


def _describe_size(info: TargetFile) -> str:
    """Describe the size of a file; of a hub part that of the files it names, which is what counts."""
    if not is_hub_path(info.path) or not isinstance(info.custom, dict):
        return f"{info.length} B"
    size, files = (json.dumps(info.custom.get(field))[:20] for field in (SIZE_FIELD, FILES_FIELD))
    return f"hub part of {size} B in {files} files"


def _describe_holders(signed: Root | Targets | None) -> dict[str, str]:
    """Describe the keys per role: `2 of root-1, root-2, root-3`."""
    if isinstance(signed, Root):
        pairs = [(name, role, signed.keys) for name, role in signed.roles.items()]
    elif signed and signed.delegations:
        pairs = [(name, role, signed.delegations.keys) for name, role in delegated_roles(signed).items()]
    else:
        return {}
    return {name: f"{role.threshold} of {', '.join(_key_names(role, keys))}" for name, role, keys in pairs}


def _key_names(role: Role, keys: dict[str, Key]) -> list[str]:
    return sorted(f"{display_name(keys[keyid])} ({keyid[:8]})" for keyid in role.keyids if keyid in keys)


def _check_chain(roots: Sequence[Metadata[Root]], trusted: Metadata[Root] | None) -> None:
    for number, metadata in enumerate(roots, start=1):
        over = (metadata, *([roots[number - 2]] if number > 1 else []))
        if metadata.signed.version != number or not all(is_verified(each.signed, ROOT, metadata) for each in over):
            raise RequestError(f"root {number} does not follow from the one before it")
    if trusted is None:
        return
    if len(roots) < trusted.signed.version:
        raise RequestError(f"the hub's root is {len(roots)}, older than {trusted.signed.version} which is trusted here")
    if roots[trusted.signed.version - 1].signed_bytes != trusted.signed_bytes:
        raise RequestError("the hub's root does not follow from the one trusted here: this is another repository")


def _check_expiry(role: str, expires: datetime, now: datetime) -> None:
    if expires <= now:
        raise RequestError(f"{role} would have expired on {expires:%Y-%m-%d}: is the clock right?")
    if expires > now + role_lifetime(role) + CLOCK_SLACK:
        raise RequestError(
            f"{role} would be valid until {expires:%Y-%m-%d}, longer than {role_lifetime(role).days} days"
        )


def _check_root(before: Root | None, after: Root) -> None:
    wanted = before.version + 1 if before else 1
    if after.version != wanted:
        raise RequestError(f"root {after.version} where root {wanted} comes next")
    if not after.consistent_snapshot or set(after.roles) != set(TOP_LEVEL):
        raise RequestError("root must have consistent snapshots and the four roles of TUF")
    for name, role in after.roles.items():
        _check_keys(name, role, after.keys)
        if name in ONLINE and role.threshold != 1:
            raise RequestError(f"{name} is signed by the hub alone: its threshold is 1")


def _check_keys(name: str, role: Role, keys: dict[str, Key]) -> None:
    """Check a role's keys: one key under two ids would count twice."""
    listed = [keys[keyid] for keyid in role.keyids if keyid in keys]
    if any(key.keytype != "ed25519" or key.scheme != "ed25519" for key in listed):
        raise RequestError(f"{name}: only Ed25519 keys are allowed")
    different = {str(key.keyval.get("public", "")).lower() for key in listed}
    if len(different) != len(role.keyids):
        raise RequestError(f"{name}: a key is listed twice, or is missing")
    if len(different) < role.threshold:
        raise RequestError(f"{name}: {len(different)} keys for a threshold of {role.threshold}")


def _check_version(role: str, before: Metadata[Targets] | None, version: int) -> None:
    least = before.signed.version + 1 if before else 1
    if not least <= version <= MAX_VERSION:
        raise RequestError(f"{role} {version} where {least} comes next: the hub went on meanwhile, ask it again")


def _check_targets(request: SigningRequest, role: str, targets: Targets) -> None:
    if role == TARGETS:
        if targets.delegations and targets.delegations.succinct_roles is not None:
            raise RequestError("targets delegates by hash: only our own folders are delegated")
        for name, delegation in delegated_roles(targets).items():
            _check_delegation(name, delegation, targets)
    elif role not in delegated_roles(request.targets):
        raise RequestError(f"{role}: nobody delegates to it")
    elif targets.delegations is not None:
        raise RequestError(f"{role}: a delegated role may not delegate")
    for path, info in targets.targets.items():
        _check_file(role, path, info)
    for path, info in targets.targets.items():
        _check_halves(path, info, targets)


def _check_delegation(name: str, delegation: DelegatedRole, targets: Targets) -> None:
    keys: dict[str, Any] = targets.delegations.keys if targets.delegations else {}
    if not is_delegated(name) or delegation.paths != [path_pattern(name)] or not delegation.terminating:
        raise RequestError(f"{name}: not a delegation of ours, or for other paths than its own")
    _check_keys(name, delegation, keys)


def _check_file(role: str, path: str, info: TargetFile) -> None:
    custom = info.custom
    version = custom.get("version") if isinstance(custom, dict) else None
    if not may_list_path(role, path):
        raise RequestError(f"{role}: {path[:80]!r} is not in its folder")
    if not _SHA256.fullmatch(_target_sha256(info)) or set(info.hashes) != {"sha256"} or info.length < 1:
        raise RequestError(f"{path}: its length or hash is impossible")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= MAX_VERSION:
        raise RequestError(f"{path}: has no version")
    for field in (REVOKED_FIELD, INTERFACE_FIELD):
        if not isinstance(custom.get(field, False), bool):
            raise RequestError(f"{path}: `{field}` must be true or false")
    if role == TARGETS:
        _check_permit(path, custom)


def _check_halves(path: str, info: TargetFile, targets: Targets) -> None:
    """Check that a bundle and its hub part are listed together and name each other: never one without the other."""
    if is_hub_path(path):
        _check_hub_fields(path, info.custom)
        bundle = targets.targets.get(bundle_path_of(path))
        if bundle is None or bundle.custom.get(HUB_FIELD) != _target_sha256(info):
            raise RequestError(f"{path}: no bundle beside it names this hub part")
    if HUB_FIELD not in info.custom:
        return
    part = targets.targets.get(hub_path(path))
    if part is None or _target_sha256(part) != info.custom[HUB_FIELD]:
        raise RequestError(f"{path}: its hub part is not listed beside it")
    same = all(part.custom.get(field) == info.custom.get(field) for field in ("version", REVOKED_FIELD))
    if not same or part.custom.get(EDGE_FIELD) != _target_sha256(info):
        raise RequestError(f"{path}: the hub part beside it belongs to another bundle")


def _check_hub_fields(path: str, custom: dict[str, Any]) -> None:
    counts = custom.get(SIZE_FIELD), custom.get(FILES_FIELD)
    counted = all(isinstance(each, int) and not isinstance(each, bool) and 1 <= each <= MAX_VERSION for each in counts)
    if custom.get(PART_FIELD) != HUB_PART or not counted:
        raise RequestError(f"{path}: does not say what hub part it is")


def _check_permit(path: str, custom: dict[str, Any]) -> None:
    try:
        read_permit(path, custom)
    except ValueError as error:
        raise RequestError(f"{path}: {error}") from None


def _target_sha256(info: TargetFile) -> str:
    return str(info.hashes.get("sha256", ""))
