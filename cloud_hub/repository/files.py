"""File store of the TUF repository: versioned metadata and content-addressed targets, without keys or signing rules.

Rule: a reader, and a crash at any point, meets a repository that a device accepts. New files come first, the timestamp
last; a new root changes too much for that, so it comes with a whole new `metadata` folder behind one renamed link.

Rule: a device that enrols is given the newest root (`TrustAnchor`), not the first: whoever stole the keys of an old one
must not be believed by a new device.

Source: TUF specification 1.0, section 3 (repository layout) and 6.2 (consistent snapshots).
"""

import base64
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tuf.api.metadata import TargetFile

from cloud_hub.repository.parts import PartStore, list_part_files
from cloud_hub.system.state_folder import make_private_folder
from models.signing.roles import is_hub_path
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import sync_folder, write_private_file

TIMESTAMP_FILE = "timestamp.json"
KEPT_VERSIONS = 3  # of every role, for devices that are in the middle of an update
UNLISTED_LIFE_S = 30 * 86_400.0  # of a target that no kept metadata lists: it may wait for a signature
_VERSIONED = re.compile(r"(\d+)\.(.+)\.json")
_GENERATION = "metadata-"


class RepositoryFiles:
    """Files of one update repository on disk.

    `metadata` and `targets` below `folder` are what is served, by the hub or by a mirror that copies them and follows
    links. `parts` are the hub parts, descriptions and weights alike, which only hubs are given.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = folder / "metadata"
        self.targets = folder / "targets"
        self.parts = PartStore(folder / "parts")

    def read_metadata(self, name: str) -> bytes:
        """Return the bytes of a metadata file, b"" if there is none. ExitError(DISK) if it cannot be read."""
        try:
            return (self.metadata / name).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{self.metadata / name}: {error.strerror}") from None

    def read_roots(self) -> list[bytes]:
        """Return every root version, 1 first."""
        found: list[bytes] = []
        while data := self.read_metadata(f"{len(found) + 1}.root.json"):
            found.append(data)
        return found

    def write_metadata(self, files: Mapping[str, bytes]) -> None:
        """Write metadata files in the given order, without a new root; the timestamp has to be the last."""
        for name, data in files.items():
            write_private_file(self.metadata / name, data)

    def switch_metadata(self, files: Mapping[str, bytes], generation: int) -> None:
        """Switch to a new metadata folder that has these files beside the present ones, atomically.

        `generation` is the new root's version. ExitError(DISK) if it could not be written; then the old folder is still
        served.
        """
        make_private_folder(self.folder)
        fresh = self.folder / f"{_GENERATION}{generation}"
        try:
            self._copy_to(fresh)
            for name, data in files.items():
                write_private_file(fresh / name, data)
            self._point_to(fresh)
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{fresh}: {error.strerror}") from None
        self._sweep_generations(fresh.name)

    def place_target(self, path: str, data: bytes) -> TargetFile:
        """Write a target under its SHA-256 name. No device sees it before a role lists it, or a hub part ever."""
        info = TargetFile.from_data(path, data, ["sha256"])
        if is_hub_path(path):
            self.parts.place_bytes(data)
            return info
        place = self._locate_target(info)
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ExitError(ExitCode.DISK, f"{place.parent}: {error.strerror}") from None
        write_private_file(place, data)
        return info

    def has_target(self, info: TargetFile) -> bool:
        """Whether the target is on disk, with the listed length and SHA-256."""
        try:
            with self._locate_target(info).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest = sha256()
                while piece := file.read(1 << 20):
                    digest.update(piece)
        except OSError:
            return False
        return size == info.length and digest.hexdigest() == info.hashes.get("sha256")

    def has_hub_files(self, info: TargetFile) -> bool:
        """Whether every file that a hub part's target names is on disk, with its size."""
        data = self.read_target(info)
        return bool(data) and all(self.parts.has_part(*each) for each in list_part_files(data).items())

    def read_target(self, info: TargetFile) -> bytes:
        """Return a small target's bytes, b"" if it is missing or does not match its hash."""
        return self._locate_target(info).read_bytes() if self.has_target(info) else b""

    def prune_files(self) -> None:
        """Delete old metadata versions and unlisted targets. Errors are ignored: what stays does no harm."""
        with suppress(OSError):
            self._prune_metadata()
            self._prune_targets()
        with suppress(OSError, ValueError):
            self._prune_parts()

    def _locate_target(self, info: TargetFile) -> Path:
        """Return where a target lies: hub parts apart from what devices may fetch."""
        if is_hub_path(info.path):
            return self.parts.locate(str(info.hashes.get("sha256", "-")))
        return self.targets / info.get_prefixed_paths()[0]

    def _copy_to(self, fresh: Path) -> None:
        """Make a folder with the present metadata files as hard links (metadata is never changed in place)."""
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        for path in sorted(self.metadata.iterdir()) if self.metadata.is_dir() else []:
            if path.suffix == ".json":
                os.link(path, fresh / path.name)

    def _point_to(self, fresh: Path) -> None:
        sync_folder(fresh)
        link = self.folder / ".metadata"
        link.unlink(missing_ok=True)
        link.symlink_to(fresh.name)
        link.replace(self.metadata)
        sync_folder(self.folder)

    def _sweep_generations(self, kept: str) -> None:
        for path in self.folder.glob(f"{_GENERATION}*"):
            if path.name != kept:
                shutil.rmtree(path, ignore_errors=True)

    def _prune_metadata(self) -> None:
        versions: dict[str, list[tuple[int, Path]]] = {}
        for path in self.metadata.iterdir():
            match = _VERSIONED.fullmatch(path.name)
            if match and match[2] != "root":
                versions.setdefault(match[2], []).append((int(match[1]), path))
        for found in versions.values():
            for _, path in sorted(found)[:-KEPT_VERSIONS]:
                path.unlink()

    def _prune_targets(self) -> None:
        listed = {info.get_prefixed_paths()[0] for info in self._list_targets()}
        oldest = time.time() - UNLISTED_LIFE_S
        for path in self.targets.rglob("*"):
            if path.is_file() and str(path.relative_to(self.targets)) not in listed and path.stat().st_mtime < oldest:
                path.unlink()

    def _prune_parts(self) -> None:
        """Delete files of hub parts that no listed one names; none at all while a listed description is missing."""
        listed = {str(info.hashes.get("sha256")) for info in self._list_targets() if is_hub_path(info.path)}
        named = {digest for each in listed for digest in list_part_files(self.parts.locate(each).read_bytes())}
        self.parts.prune_parts(listed | named, UNLISTED_LIFE_S)

    def _list_targets(self) -> list[TargetFile]:
        """Return every target that a kept metadata file lists."""
        kept = (json.loads(path.read_bytes())["signed"].get("targets", {}) for path in self.metadata.glob("*.json"))
        return [TargetFile.from_dict(dict(value), path) for targets in kept for path, value in targets.items()]


TUF_PATH = "/tuf"  # below the hub's own address


@dataclass(frozen=True)
class TrustAnchor:
    """Root of trust that an enrolling device is given: the newest root, and the address of the repository.

    `folder` of the repository, None for a hub without one; `mirror`: base URL given to devices instead of the hub's
    own.
    """

    folder: Path | None = None
    mirror: str = ""

    def read_root(self) -> bytes:
        """Return the newest root as it is served, b"" before there is one."""
        roots = RepositoryFiles(self.folder).read_roots() if self.folder else []
        return roots[-1] if roots else b""

    def root_sha256(self) -> str:
        """Return the SHA-256 of the newest root, hex, as invites carry it; "" before there is a root."""
        root = self.read_root()
        return sha256(root).hexdigest() if root else ""

    def reply_fields(self, hub_url: str) -> dict[str, str]:
        """Return the fields of the enrolment reply: `tuf_root` (base64) and `tuf_url` (above metadata/ and targets/).

        Both are "" before there is a root. A device compares the bytes with the hash in its invite; if root was
        rotated in between they differ, and it needs a new invite.
        """
        root = self.read_root()
        url = (self.mirror or hub_url + TUF_PATH) if root else ""
        return {"tuf_root": base64.b64encode(root).decode(), "tuf_url": url.rstrip("/")}


NO_ANCHOR = TrustAnchor()
