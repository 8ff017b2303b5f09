"""TUF repository in memory: every file that was ever published, by its path below the base address.

Rule: nothing is served but what `publish` or a test put into `files`, so a test controls exactly what the client gets.
"""

import datetime as dt
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

from models.update.trust import SIGNED_MS_FIELD

TOP = ("root", "targets", "snapshot", "timestamp")
NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)


@cache
def signer(number: int) -> CryptoSigner:
    """The same key for the same number, drawn once for the whole run."""
    return CryptoSigner.generate_ed25519()


def days(count: float) -> dt.datetime:
    return NOW + dt.timedelta(days=count)


class Repository:
    """A TUF repository whose keys are numbers: `keys[role]` sign it when it is published.

    `drawn`: keys generated so far.
    """

    def __init__(self, *, hashed: bool = False) -> None:
        self.files: dict[str, bytes] = {}
        self.keys: dict[str, list[int]] = {}
        self.drawn = 0
        self.hashed = hashed  # lengths and hashes in timestamp and snapshot
        self.md: dict[str, Metadata[Any]] = {
            "root": Metadata(Root(expires=days(365), consistent_snapshot=True)),
            "targets": Metadata(Targets(expires=days(180))),
            "snapshot": Metadata(Snapshot(expires=days(30))),
            "timestamp": Metadata(Timestamp(expires=days(7))),
        }
        self._published: set[str] = set()
        for role in TOP:
            self.add_key(role)
        self.publish("root")
        self.publish_all()
        self.publish_all()  # version 2: there is something older to go back to

    @property
    def root(self) -> Root:
        signed = self.md["root"].signed
        assert isinstance(signed, Root)
        return signed

    @property
    def timestamp(self) -> Timestamp:
        signed = self.md["timestamp"].signed
        assert isinstance(signed, Timestamp)
        return signed

    @property
    def snapshot(self) -> Snapshot:
        signed = self.md["snapshot"].signed
        assert isinstance(signed, Snapshot)
        return signed

    def targets(self, role: str = "targets") -> Targets:
        signed = self.md[role].signed
        assert isinstance(signed, Targets)
        return signed

    @property
    def trusted_root(self) -> bytes:
        return self.files["metadata/1.root.json"]

    def new_key(self) -> int:
        self.drawn += 1
        return self.drawn

    def add_key(self, role: str, key: int | None = None, delegator: str = "targets") -> int:
        """A further key that may sign for the role, and does."""
        key = key or self.new_key()
        over = self.root if role in TOP else self.targets(delegator)
        over.add_key(signer(key).public_key, role)
        self.keys.setdefault(role, []).append(key)
        return key

    def rotate(self, role: str, delegator: str = "targets") -> None:
        """Replace a role's keys, as many as the threshold wants. The caller publishes the role that lists them."""
        listed = (self.root if role in TOP else self.targets(delegator)).get_delegated_role(role)
        old = self.keys.pop(role)
        listed.keyids.clear()
        for _ in range(listed.threshold):
            self.add_key(role, delegator=delegator)
        if role == "root":
            self.keys["root"] += old  # the next root is signed by both

    def delegate(self, role: str, paths: Iterable[str], delegator: str = "targets", **more: Any) -> None:
        over = self.targets(delegator)
        over.delegations = over.delegations or Delegations({}, roles={})
        assert over.delegations.roles is not None
        over.delegations.roles[role] = DelegatedRole(role, [], 1, more.pop("terminating", False), list(paths), **more)
        self.md.setdefault(role, Metadata(Targets(expires=days(90))))
        if role not in self.keys:
            self.add_key(role, delegator=delegator)
        else:
            for key in self.keys[role]:
                over.add_key(signer(key).public_key, role)

    def add(self, path: str, data: bytes, role: str = "targets", version: int | None = 1, **custom: Any) -> TargetFile:
        """List a target and serve it; publish the role yourself."""
        info = TargetFile.from_data(path, data, ["sha256"])
        if version is not None:
            info.unrecognized_fields["custom"] = {"version": version, **custom}
        self.targets(role).targets[path] = info
        self.files[self.place(info)] = data
        return info

    def place(self, info: TargetFile) -> str:
        folder, slash, name = info.path.rpartition("/")
        prefix = f"{info.hashes['sha256']}." if self.root.consistent_snapshot else ""
        return f"targets/{folder}{slash}{prefix}{name}"

    def publish(self, *roles: str) -> None:
        """A new version of each role, signed and served; the role that lists it is updated but not published."""
        for role in roles:
            md = self.md[role]
            md.signed.version += role in self._published
            self.put(role)

    def put(self, role: str) -> None:
        """Sign and serve it in the version it has."""
        md = self.md[role]
        self._published.add(role)
        md.signatures.clear()
        for key in self.keys.get(role, []):
            md.sign(signer(key), append=True)
        data = md.to_bytes()
        self.files[f"metadata/{role}.json"] = data
        self.files[f"metadata/{md.signed.version}.{role}.json"] = data
        self._list(role, data)

    def _list(self, role: str, data: bytes) -> None:
        meta = MetaFile.from_data(self.md[role].signed.version, data, ["sha256"])
        if not self.hashed:
            meta = MetaFile(meta.version)
        if role == "snapshot":
            self.timestamp.snapshot_meta = meta
        elif role not in ("root", "timestamp"):
            self.snapshot.meta[f"{role}.json"] = meta

    def publish_all(self, *roles: str) -> None:
        """The roles named, else `targets`, and what must follow them."""
        self.publish(*(roles or ("targets",)), "snapshot", "timestamp")

    def say_hour(self, at_ms: int) -> None:
        self.timestamp.unrecognized_fields[SIGNED_MS_FIELD] = at_ms

    def copy(self) -> dict[str, bytes]:
        """The repository as it is served now: what a hostile mirror may keep and serve later."""
        return dict(self.files)

    def write(self, folder: Path) -> None:
        for path, data in self.files.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
