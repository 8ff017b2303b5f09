"""Access to python-tuf's updater: its verified metadata, and the time it judges expiry by.

Rule: read what was verified, decide nothing. The updater offers neither a clock nor its verified metadata, hence the
private names below; the dependency is held under 8 and `tests/models/update/test_tuf_view.py` fails if they move.
"""

import datetime as dt
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from securesystemslib.signer import Key
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient.updater import Updater

from models.update.trust import META_PREFIX, SIGNED_MS_FIELD, TrustedRole, VerifiedRefresh

TOP_LEVEL = (Root.type, Timestamp.type, Snapshot.type, Targets.type)
_URL_SAFE = (
    "/%!$&'()*+,;=:@~"  # the rest is quoted; a path is a path-relative URL string already (TUF specification 4.5)
)


class ListedTarget(msgspec.Struct, frozen=True):
    """Target as the role that lists it has it, with that role and the keys that signed it."""

    info: TargetFile
    role: TrustedRole
    signers: frozenset[str]


def set_reference_time(updater: Updater, at_ms: int) -> None:
    """Set the time that every expiry is judged by, milliseconds since 1970."""
    moment = dt.datetime.fromtimestamp(min(at_ms, _MAX_EPOCH_MS) / 1000, tz=dt.UTC)
    updater._trusted_set.reference_time = moment  # noqa: SLF001 - see the rule above


def parse_root(data: bytes) -> Root:
    """Parse root metadata, unverified. RepositoryError or DeserializationError if it is none."""
    root: object = Metadata.from_bytes(data).signed
    if not isinstance(root, Root):
        raise RepositoryError("that is no root metadata")
    return root


def current_root(updater: Updater) -> Root:
    """Return the root that the updater trusts now."""
    return updater._trusted_set.root  # noqa: SLF001 - see the rule above


def top_level_roles(root: Root) -> dict[str, TrustedRole]:
    """Return the four top-level roles of a root, by name."""
    return {name: _trusted_role(root, name) for name in TOP_LEVEL}


def read_refresh(updater: Updater, folder: Path) -> VerifiedRefresh:
    """Collect what a complete refresh verified.

    RepositoryError if the cache in `folder` is no longer what was verified.
    """
    trusted = updater._trusted_set  # noqa: SLF001 - see the rule above
    timestamp, snapshot = trusted.timestamp, trusted.snapshot
    versions = {Timestamp.type: timestamp.version, Snapshot.type: snapshot.version}
    versions |= {META_PREFIX + name: meta.version for name, meta in snapshot.meta.items()}
    signed_ms = timestamp.unrecognized_fields.get(SIGNED_MS_FIELD, 0)
    return VerifiedRefresh(
        root=trusted.root.version,
        roles=top_level_roles(trusted.root),
        versions=versions,
        signers={signed.type: _verified_signers(trusted.root, signed, folder) for signed in (timestamp, snapshot)},
        signed_ms=signed_ms if isinstance(signed_ms, int) else 0,
        offline_expires_ms=min(_to_epoch_ms(trusted.root.expires), _to_epoch_ms(trusted.targets.expires)),
    )


def find_listing(updater: Updater, path: str, folder: Path) -> ListedTarget | None:
    """Find a target, the role that lists it and who signed that role; None if nobody trusted for the path lists it."""
    info = updater.get_targetinfo(path)
    if info is None:
        return None
    for delegator, name, targets in _iter_loaded_roles(updater):
        if targets.targets.get(path) is info:
            return ListedTarget(
                info, _trusted_role(delegator, name), _verified_signers(delegator, targets, folder, name)
            )
    raise RepositoryError(f"no loaded role lists {path}")


def list_below(updater: Updater, prefix: str) -> tuple[TargetFile, ...]:
    """List the targets under a prefix that a role loaded so far is trusted for.

    `find_listing` says which role takes precedence for one of them.
    """
    found = ((over, name, info) for over, name, role in _iter_loaded_roles(updater) for info in role.targets.values())
    return tuple(
        info for over, name, info in found if info.path.startswith(prefix) and _is_trusted_for(over, name, info)
    )


def list_offline_targets(updater: Updater, prefix: str) -> tuple[TargetFile, ...]:
    """List the targets under a prefix in the top-level targets role itself: no hub has its keys."""
    targets = updater._trusted_set.targets.targets  # noqa: SLF001 - see the rule above
    return tuple(info for path, info in sorted(targets.items()) if path.startswith(prefix))


def target_url(updater: Updater, info: TargetFile, base_url: str) -> str:
    """Return the URL of a target: under a consistent snapshot the file name begins with the hash."""
    folder, slash, name = info.path.rpartition("/")
    if current_root(updater).consistent_snapshot:
        name = f"{next(iter(info.hashes.values()))}.{name}"
    return f"{base_url.rstrip('/')}/{quote(folder + slash + name, safe=_URL_SAFE)}"


def _iter_loaded_roles(updater: Updater) -> Iterator[tuple[Root | Targets, str, Targets]]:
    """Iterate over every verified targets role: (delegator, role name, role)."""
    trusted = updater._trusted_set  # noqa: SLF001 - see the rule above
    for delegator, name in sorted(trusted._trusted_delegations):  # noqa: SLF001
        role, over = trusted[name], trusted[delegator]
        if isinstance(role, Targets) and isinstance(over, Root | Targets):
            yield over, name, role


def _is_trusted_for(delegator: Root | Targets, name: str, info: TargetFile) -> bool:
    if isinstance(delegator, Root) or delegator.delegations is None:
        return True
    return any(role == name for role, _ in delegator.delegations.get_roles_for_target(info.path))


def _verified_signers(
    delegator: Root | Targets, signed: Timestamp | Snapshot | Targets, folder: Path, name: str = ""
) -> frozenset[str]:
    """Return fingerprints of the keys whose signature on the cached file verifies."""
    name = name or signed.type
    metadata: Metadata[Any] = Metadata.from_bytes((folder / f"{quote(name, '')}.json").read_bytes())
    if metadata.signed != signed:
        raise RepositoryError(f"{name}: the cached file is not what was verified")
    result = delegator.get_verification_result(name, metadata.signed_bytes, metadata.signatures)
    return frozenset(_key_fingerprint(key) for key in result.signed.values())


def _trusted_role(delegator: Root | Targets, name: str) -> TrustedRole:
    role = delegator.get_delegated_role(name)
    return TrustedRole(frozenset(_key_fingerprint(key) for key in _role_keys(delegator, role.keyids)), role.threshold)


def _role_keys(delegator: Root | Targets, keyids: list[str]) -> Iterator[Key]:
    known = (
        delegator.keys if isinstance(delegator, Root) else delegator.delegations.keys if delegator.delegations else {}
    )
    return (known[keyid] for keyid in keyids if keyid in known)


def _key_fingerprint(key: Key) -> str:
    """Return the fingerprint of the key itself, not of the id somebody gave it."""
    parts = msgspec.json.encode([key.keytype, key.scheme, key.keyval], order="deterministic")
    return sha256(parts).hexdigest()[:32]


def _to_epoch_ms(moment: dt.datetime) -> int:
    return int(moment.timestamp() * 1000)


_MAX_EPOCH_MS = _to_epoch_ms(dt.datetime(9999, 1, 1, tzinfo=dt.UTC))
