"""Signing requests: the repository as it stands, changes to be signed, and the signatures collected so far.

Rule: a request is self-contained and proves nothing by itself; `models.signing.review` says what of it may be signed or
installed. Signatures are collected in the file, so that it can go from one holder of a key to the next.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root, Snapshot, Targets, Timestamp
from tuf.api.serialization.json import JSONSerializer

from models.signing.roles import ROOT, TARGETS

HUB_FORMAT = "skerry-hub/1"
REQUEST_FORMAT = "skerry-request/1"
MAX_REQUEST_BYTES = 64 << 20
ChangedMetadata = Metadata[Root] | Metadata[Targets]
Delegator = Root | Targets
T = TypeVar("T", Root, Targets, Snapshot, Timestamp)
R = TypeVar("R")


class RequestError(Exception):
    """Request that must not be signed or installed: one line that says why."""


@dataclass(frozen=True)
class RepositoryState:
    """State of a hub's repository: every root in order, targets and delegated roles, the hub's own public keys."""

    online: Mapping[str, SSlibKey] = field(default_factory=dict)  # by role, what the hub offers to sign with
    roots: tuple[Metadata[Root], ...] = ()
    base: Mapping[str, Metadata[Targets]] = field(default_factory=dict)  # "targets", "models-digits", ...

    @property
    def root(self) -> Root | None:
        """Newest root; None before the first."""
        return self.roots[-1].signed if self.roots else None

    @property
    def targets(self) -> Targets | None:
        """Top-level targets; None before the first."""
        return self.base[TARGETS].signed if TARGETS in self.base else None


@dataclass(frozen=True)
class SigningRequest:
    """Request for signatures: new versions by role name, on top of a state."""

    state: RepositoryState
    changes: Mapping[str, ChangedMetadata]

    @property
    def root(self) -> Root:
        """Root once the request is installed. RequestError if there is none."""
        changed = self.changes.get(ROOT)
        found = changed.signed if changed else self.state.root
        if not isinstance(found, Root):
            raise RequestError("there is no root yet: `skerry keys init` makes the first")
        return found

    @property
    def targets(self) -> Targets:
        """Top-level targets once the request is installed. RequestError if there are none."""
        changed = self.changes.get(TARGETS)
        found = changed.signed if changed else self.state.targets
        if not isinstance(found, Targets):
            raise RequestError("there are no targets yet: `skerry keys init` makes the first")
        return found

    def delegators(self, role: str) -> tuple[Delegator, ...]:
        """Return who says which keys sign for a role; for root the old one and itself (TUF specification 5.3.4)."""
        if role == ROOT:
            return (self.state.root, self.root) if self.state.root else (self.root,)
        return (self.root,) if role == TARGETS else (self.targets,)


def missing_signatures(request: SigningRequest, role: str) -> tuple[frozenset[str], int]:
    """Return the ids of keys that could still sign, and how many signatures are needed at least.

    (.., 0) if the role has enough.
    """
    metadata = request.changes[role]
    able: set[str] = set()
    needed = 0
    for delegator in request.delegators(role):
        found = count_signatures(delegator, role, metadata)
        able |= set(found[1]) if not found[0] >= found[2] else set()
        needed = max(needed, found[2] - found[0])
    return frozenset(able), needed


def count_signatures(delegator: Delegator, role: str, metadata: Metadata[Any]) -> tuple[int, frozenset[str], int]:
    """Count signatures: (good ones, ids of keys that have not signed, threshold).

    RequestError if there is no such role.
    """
    try:
        found = delegator.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
    except ValueError:
        raise RequestError(f"{role}: no such role") from None
    return len(found.signed), frozenset(found.unsigned), found.threshold


def is_verified(delegator: Delegator, role: str, metadata: Metadata[Any]) -> bool:
    """Tell whether metadata has enough good signatures by a delegator."""
    good, _, threshold = count_signatures(delegator, role, metadata)
    return good >= threshold


def add_signatures(request: SigningRequest, signers: Sequence[CryptoSigner]) -> list[tuple[str, str]]:
    """Add every signature that is still of use. Returns (role, key id) of each."""
    done = []
    for role in request.changes:
        for signer in signers:
            keyid = signer.public_key.keyid
            if keyid in missing_signatures(request, role)[0]:
                request.changes[role].sign(signer, append=True)
                done.append((role, keyid))
    return done


def build_successor(metadata: Metadata[T]) -> Metadata[T]:
    """Copy metadata with the next version and no signature."""
    copied = Metadata(deepcopy(metadata.signed))
    copied.signed.version += 1
    return copied


def encode_metadata(metadata: Metadata[Any]) -> bytes:
    """Encode metadata as the file lies in the repository."""
    return metadata.to_bytes(JSONSerializer(compact=True))


def decode_metadata(data: bytes, kind: type[T]) -> Metadata[T]:
    """Decode metadata. RequestError unless it is of that kind. Verifies no signature."""
    try:
        metadata: Metadata[Any] = Metadata.from_bytes(data)
    except (RepositoryError, RecursionError):
        raise RequestError(f"not readable as {kind.type} metadata") from None
    if not isinstance(metadata.signed, kind):
        raise RequestError(f"{metadata.signed.type} metadata where {kind.type} was expected")
    return metadata


def dump_state(state: RepositoryState) -> bytes:
    """Encode a state as the file that a hub exports."""
    return _encode_json({"format": HUB_FORMAT, **_encode_state(state)})


def dump_request(request: SigningRequest) -> bytes:
    """Encode a request as a file."""
    changes = {role: metadata.to_dict() for role, metadata in request.changes.items()}
    return _encode_json({"format": REQUEST_FORMAT, **_encode_state(request.state), "changes": changes})


def load_state(data: bytes) -> RepositoryState:
    """Decode what a hub exported. RequestError if it is something else."""
    return _translate_errors(lambda: _parse_state(_parse_values(data, HUB_FORMAT)))


def is_request(data: bytes) -> bool:
    """Whether a file is a request to sign, which a newer one of the same name may replace."""
    try:
        load_request(data)
    except RequestError:
        return False
    return True


def is_state(data: bytes) -> bool:
    """Whether a file is what a hub exported for the keys, which a newer export may replace."""
    try:
        load_state(data)
    except RequestError:
        return False
    return True


def load_request(data: bytes) -> SigningRequest:
    """Decode a request file. RequestError if it is something else, or damaged."""

    def read() -> SigningRequest:
        values = _parse_values(data, REQUEST_FORMAT)
        changes: dict[str, ChangedMetadata] = {
            role: _parse_metadata(value, Root) if role == ROOT else _parse_metadata(value, Targets)
            for role, value in values["changes"].items()
        }
        return SigningRequest(_parse_state(values), changes)

    return _translate_errors(read)


def _encode_state(state: RepositoryState) -> dict[str, Any]:
    return {
        "online": {role: {"keyid": key.keyid, **key.to_dict()} for role, key in state.online.items()},
        "roots": [metadata.to_dict() for metadata in state.roots],
        "base": {role: metadata.to_dict() for role, metadata in state.base.items()},
    }


def _parse_state(values: dict[str, Any]) -> RepositoryState:
    online = {role: _parse_key(value) for role, value in values["online"].items()}
    roots = tuple(_parse_metadata(value, Root) for value in values["roots"])
    return RepositoryState(
        online, roots, {role: _parse_metadata(value, Targets) for role, value in values["base"].items()}
    )


def _parse_key(value: dict[str, Any]) -> SSlibKey:
    return SSlibKey.from_dict(value.pop("keyid"), value)


def _parse_metadata(value: dict[str, Any], kind: type[T]) -> Metadata[T]:
    return decode_metadata(json.dumps(value).encode(), kind)


def _parse_values(data: bytes, wanted: str) -> dict[str, Any]:
    values = json.loads(data)
    found = values.get("format")
    if found != wanted:
        hint = "a request" if wanted == REQUEST_FORMAT else "what `skerry repository export` writes"
        raise RequestError(f"this file is not {hint}")
    return dict(values)


def _translate_errors(read: Callable[[], R]) -> R:
    try:
        return read()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RequestError("the file is damaged or not one of ours") from None


def _encode_json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, indent=1, sort_keys=True).encode() + b"\n"
