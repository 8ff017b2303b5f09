"""The TUF repository: reads its current state, makes the next metadata versions, signs and commits them.

Rule: every change is judged by `models.signing.review` and signed before the first byte is written, under one lock, on
top of what the disk says at that moment. The hub signs snapshot, timestamp and the roles that were delegated to its
keys; for all others it writes a request and waits.

Source: TUF specification 1.0, sections 2 (roles) and 5 (client workflow).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp
from tuf.ngclient.config import UpdaterConfig

from cloud_hub.repository.files import TIMESTAMP_FILE, RepositoryFiles
from cloud_hub.repository.signing_keys import OnlineKeys
from models.signing import review
from models.signing.request import (
    ChangedMetadata,
    RepositoryState,
    RequestError,
    SigningRequest,
    build_successor,
    decode_metadata,
    encode_metadata,
    is_verified,
)
from models.signing.roles import (
    ONLINE,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    expiry_for,
    is_hub_path,
    is_renewal_due,
    role_lifetime,
)
from models.update.trust import SIGNED_MS_FIELD
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError

PATIENCE_S = 10.0  # for another command, or the hub itself, at work on the same repository
RESTORE_JUMP = 1_000_000  # versions; the timestamp takes one a day, and one with each publication
_POLL_S = 0.05
_LIMITS = UpdaterConfig()  # a device refuses longer metadata
TargetsEdit = Callable[[Targets], object]


class Repository:
    """The update repository of one hub. Every method reads the disk anew.

    `folder` holds what is served, `online` the hub's own signing keys; `patience_s` is how long a lock is waited
    for.
    """

    def __init__(self, folder: Path, online: OnlineKeys, patience_s: float = PATIENCE_S) -> None:
        self.shelf = RepositoryFiles(folder)
        self.online = online
        self._patience_s = patience_s
        self._held = False

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Hold the repository's write lock; may be nested.

        ExitError(LOCKED) if another process keeps it for too long.
        """
        if self._held:
            yield
            return
        self.shelf.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _wait_for_lock(self.shelf.folder, self._patience_s):
            self._held = True
            try:
                yield
            finally:
                self._held = False

    @property
    def has_root(self) -> bool:
        """Whether the first root has been installed."""
        return bool(self.shelf.read_metadata("1.root.json"))

    def read_root(self) -> bytes:
        """Return the newest root as served, b"" before there is one. Its SHA-256 goes into invites."""
        roots = self.shelf.read_roots()
        return roots[-1] if roots else b""

    def snapshot_version(self) -> int:
        """Return the snapshot's version, which rises with every publication; 0 before there is one.

        ExitError(DATABASE or DISK) if unreadable.
        """
        data = self.shelf.read_metadata(TIMESTAMP_FILE)
        try:
            return int(decode_metadata(data, Timestamp).signed.snapshot_meta.version) if data else 0
        except RequestError as error:
            raise ExitError(ExitCode.DATABASE, f"{self.shelf.folder} is damaged ({error})") from None

    def read_state(self) -> RepositoryState:
        """Return the keys on offer, the roots and the targets metadata that the newest timestamp names.

        ExitError(DATABASE) if a file is missing or damaged.
        """
        try:
            roots = tuple(decode_metadata(data, Root) for data in self.shelf.read_roots())
            base = {
                name.removesuffix(".json"): decode_metadata(self._read_versioned(name, meta.version), Targets)
                for name, meta in self._read_snapshot().signed.meta.items()
            }
        except RequestError as error:
            raise ExitError(
                ExitCode.DATABASE, f"{self.shelf.folder} is damaged ({error}): restore it from a backup or a mirror"
            ) from None
        return RepositoryState(self.online.offered_keys(), roots, base if roots else {})

    def current_metadata(self) -> dict[str, Metadata[Any]]:
        """Return every role's newest metadata by name; {} before there is a root."""
        state = self.read_state()
        if not state.roots:
            return {}
        timestamp = decode_metadata(self.shelf.read_metadata(TIMESTAMP_FILE), Timestamp)
        return {ROOT: state.roots[-1], SNAPSHOT: self._read_snapshot(), TIMESTAMP: timestamp, **state.base}

    def hub_signed_roles(self, targets: Targets) -> frozenset[str]:
        """Return the delegated roles that the hub can sign alone."""
        roles = review.delegated_roles(targets).items()
        return frozenset(name for name, role in roles if len(self.online.load_signers(role.keyids)) >= role.threshold)

    def amend_role(self, role: str, edit: TargetsEdit, now: datetime) -> SigningRequest | None:
        """Make one more version of a delegated role. None if it is published; a request if its keys are elsewhere.

        RequestError if nobody delegates to the role, or the result is one that no device may be given.
        """
        with self.write_lock():
            state = self.read_state()
            if state.targets is None:
                raise RequestError("there is no root yet: docs/trust.md, the first keys")
            if role not in state.base:
                family = role.removeprefix("models-")
                raise RequestError(f"{role} is not delegated yet: `skerry keys add {family}` where the keys are")
            fresh = build_successor(state.base[role])
            fresh.signed.expires = expiry_for(role, now)
            edit(fresh.signed)
            reduced = RepositoryState({}, state.roots, {name: state.base[name] for name in (TARGETS, role)})
            request = SigningRequest(reduced, {role: fresh})
            review.check_request(request, state.roots[-1], now)
            if role not in self.hub_signed_roles(state.targets):
                return request
            self._sign_delegated(state.targets, role, fresh)
            self._commit_changes(state, request.changes, now)
            return None

    def install_request(self, request: SigningRequest, now: datetime) -> None:
        """Commit changes that the holders of the offline keys have signed.

        RequestError, and nothing changes, if one is bad.

        Of the request only the new versions are used: what they rest on is read from the disk.
        """
        with self.write_lock():
            state = self.read_state()
            asked = SigningRequest(state, dict(request.changes))
            if _is_installed(asked):
                return  # installed before: repeating it is harmless
            review.check_request(asked, state.roots[-1] if state.roots else None, now)
            self._check_online(asked.root)
            at_hub = self.hub_signed_roles(asked.targets)
            review.check_signatures(asked, at_hub)
            self._check_present(asked)
            own = {role: made for role in sorted(at_hub) if (made := self._own_role(asked, role, now))}
            self._commit_changes(state, {**asked.changes, **own}, now)
            self.online.delete_unused(self._named_keys())

    def renew_expiring(self, now: datetime) -> tuple[str, ...]:
        """Sign again the hub's own roles that would expire: the timestamp daily.

        Returns the names of the renewed roles.
        """
        with self.write_lock():
            standing = self.current_metadata()
            targets = standing[TARGETS].signed if standing else None
            if not isinstance(targets, Targets):
                return ()
            ours = (*ONLINE, *sorted(self.hub_signed_roles(targets)))
            late = [role for role in ours if is_renewal_due(role, standing[role].signed.expires, now)]
            changes: dict[str, ChangedMetadata] = {}
            for role in late:
                if role not in ONLINE:
                    changes[role] = self._renew_role(targets, role, standing[role], now)
            if late:
                self._commit_changes(self.read_state(), changes, now, snapshot=SNAPSHOT in late)
            return tuple(late)

    def raise_versions(self, now: datetime) -> tuple[str, ...]:
        """Sign the hub's own roles again, under versions that it cannot have given since a backup was made.

        Returns the names of the roles; () without a root. Other roles keep the versions that their owners gave.
        """
        with self.write_lock():
            standing = self.current_metadata()
            targets = standing[TARGETS].signed if standing else None
            if not isinstance(targets, Targets):
                return ()
            own = sorted(self.hub_signed_roles(targets))
            changes: dict[str, ChangedMetadata] = {
                role: self._renew_role(targets, role, standing[role], now, RESTORE_JUMP)
                for role in own
                if role in standing
            }
            self._commit_changes(self.read_state(), changes, now, rise=RESTORE_JUMP)
            return (*ONLINE, *changes)

    def role_expiry(self) -> dict[str, datetime]:
        """Return when each role expires; {} without a repository."""
        return {role: metadata.signed.expires for role, metadata in self.current_metadata().items()}

    def expiring_roles(self, now: datetime) -> dict[str, datetime]:
        """Return roles that people have to sign again soon, with their expiry: under a third of their life is left."""
        standing = self.current_metadata()
        if not standing:
            return {}
        ours = {*ONLINE, *self.hub_signed_roles(standing[TARGETS].signed)}
        return {
            role: metadata.signed.expires
            for role, metadata in standing.items()
            if role not in ours and metadata.signed.expires - now <= role_lifetime(role) / 3
        }

    def _commit_changes(
        self,
        state: RepositoryState,
        changes: Mapping[str, ChangedMetadata],
        now: datetime,
        *,
        snapshot: bool = True,
        rise: int = 1,
    ) -> None:
        """Sign snapshot and timestamp over the changes and write all files, the timestamp last.

        `rise`: by how much the versions of the two go up.
        """
        root = changes.get(ROOT, state.roots[-1] if state.roots else None)
        if root is None or not isinstance(root.signed, Root):
            raise RequestError("there is no root yet")
        signing = [root.signed, *([state.root] if state.root else [])]
        files = {
            f"{changed.signed.version}.{role}.json": encode_metadata(changed)
            for role, changed in _order_changes(changes)
        }
        current = self._read_snapshot()
        if snapshot or changes:
            current = self._next_snapshot(current, changes, now, rise)
            self._sign_online(current, signing)
            files[f"{current.signed.version}.snapshot.json"] = encode_metadata(current)
        timestamp = self._next_timestamp(current, now, rise)
        self._sign_online(timestamp, signing)
        files[TIMESTAMP_FILE] = encode_metadata(timestamp)
        _check_sizes(files)
        if ROOT in changes:
            self.shelf.switch_metadata(files, root.signed.version)
        else:
            self.shelf.write_metadata(files)
        self.shelf.prune_files()

    def _next_snapshot(
        self, before: Metadata[Snapshot], changes: Mapping[str, ChangedMetadata], now: datetime, rise: int
    ) -> Metadata[Snapshot]:
        fresh = build_successor(before) if self.has_root else Metadata(Snapshot(meta={}))
        fresh.signed.version += rise - 1
        fresh.signed.expires = expiry_for(SNAPSHOT, now)
        for role, changed in changes.items():
            if role != ROOT:
                fresh.signed.meta[f"{role}.json"] = _describe_file(changed.signed.version, encode_metadata(changed))
        return fresh

    def _next_timestamp(self, snapshot: Metadata[Snapshot], now: datetime, rise: int) -> Metadata[Timestamp]:
        data = self.shelf.read_metadata(TIMESTAMP_FILE)
        version = decode_metadata(data, Timestamp).signed.version if data else 0
        meta = _describe_file(snapshot.signed.version, encode_metadata(snapshot))
        signed_ms = {SIGNED_MS_FIELD: int(now.timestamp() * 1000)}
        return Metadata(
            Timestamp(
                version + rise, None, expiry_for(TIMESTAMP, now), snapshot_meta=meta, unrecognized_fields=signed_ms
            )
        )

    def _sign_online(self, metadata: Metadata[Any], roots: Iterable[Root]) -> None:
        """Sign with the keys of the new root, and of the old one as far as they are here, for devices in between."""
        role = metadata.signed.type
        metadata.signatures.clear()
        for signer in self.online.load_signers(keyid for root in roots for keyid in root.roles[role].keyids):
            metadata.sign(signer, append=True)

    def _sign_delegated(self, targets: Targets, role: str, metadata: Metadata[Targets]) -> None:
        for signer in self.online.load_signers(review.delegated_roles(targets)[role].keyids):
            metadata.sign(signer, append=True)

    def _own_role(self, request: SigningRequest, role: str, now: datetime) -> Metadata[Targets] | None:
        """Return a hub-signed role, signed anew, if the new targets would leave it without a valid signature."""
        standing = request.state.base.get(role)
        if role in request.changes or (standing and is_verified(request.targets, role, standing)):
            return None
        return self._renew_role(request.targets, role, standing, now)

    def _renew_role(
        self, targets: Targets, role: str, standing: Metadata[Targets] | None, now: datetime, rise: int = 1
    ) -> Metadata[Targets]:
        fresh = build_successor(standing) if standing else Metadata(Targets())
        fresh.signed.version += rise - 1
        fresh.signed.expires = expiry_for(role, now)
        self._sign_delegated(targets, role, fresh)
        return fresh

    def _check_online(self, root: Root) -> None:
        for role in ONLINE:
            if not self.online.load_signers(root.roles[role].keyids):
                raise RequestError(f"root names a key for {role} that this hub does not have: export it anew")

    def _check_present(self, request: SigningRequest) -> None:
        for changed in request.changes.values():
            files = changed.signed.targets if isinstance(changed.signed, Targets) else {}
            for path, info in files.items():
                if not self.shelf.has_target(info) or (is_hub_path(path) and not self.shelf.has_hub_files(info)):
                    raise RequestError(f"{path}: its bytes are not at this hub; publish it here first")

    def _named_keys(self) -> set[str]:
        """Return the ids of all keys that root or targets name."""
        state = self.read_state()
        root, targets = state.root, state.targets
        known = set(root.keys) if root else set()
        return known | (set(targets.delegations.keys) if targets and targets.delegations else set())

    def _read_snapshot(self) -> Metadata[Snapshot]:
        """Return the snapshot that the timestamp names; an empty one before there is any."""
        data = self.shelf.read_metadata(TIMESTAMP_FILE)
        if not data:
            return Metadata(Snapshot(meta={}))
        timestamp = decode_metadata(data, Timestamp).signed
        return decode_metadata(self._read_versioned("snapshot.json", timestamp.snapshot_meta.version), Snapshot)

    def _read_versioned(self, name: str, version: int) -> bytes:
        return self.shelf.read_metadata(f"{version}.{name}")


def _is_installed(request: SigningRequest) -> bool:
    roots = request.state.roots
    held: dict[str, Metadata[Any]] = {**request.state.base, **({ROOT: roots[-1]} if roots else {})}
    return all(
        role in held and encode_metadata(held[role]) == encode_metadata(changed)
        for role, changed in request.changes.items()
    )


def _describe_file(version: int, data: bytes) -> MetaFile:
    return MetaFile.from_data(version, data, ["sha256"])


def _order_changes(changes: Mapping[str, ChangedMetadata]) -> list[tuple[str, ChangedMetadata]]:
    """Order changes: delegated roles, then targets, then root."""
    return sorted(changes.items(), key=lambda item: (item[0] == ROOT, item[0] == TARGETS, item[0]))


def _check_sizes(files: Mapping[str, bytes]) -> None:
    limits = {
        ROOT: _LIMITS.root_max_length,
        SNAPSHOT: _LIMITS.snapshot_max_length,
        TIMESTAMP: _LIMITS.timestamp_max_length,
    }
    for name, data in files.items():
        role = name.removesuffix(".json").partition(".")[2] or TIMESTAMP
        if len(data) > limits.get(role, _LIMITS.targets_max_length):
            raise RequestError(f"{name} has {len(data)} bytes, more than a device accepts: withdraw old targets")


@contextmanager
def _wait_for_lock(folder: Path, patience_s: float) -> Iterator[None]:
    deadline = time.monotonic() + patience_s
    lock = FolderLock(folder)
    while True:
        try:
            lock.__enter__()
            break
        except ExitError as stop:
            if stop.code is not ExitCode.LOCKED or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)
