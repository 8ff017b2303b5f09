"""The hub part of a published version: its files in the part store, and what its target says of them.

Rule: files come in before anything lists them; a version is listed with both targets, the bundle and its hub part, in
one change of its role, so no crash, full disk or missing signature leaves one without the other.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from cloud_hub.repository.parts import ByteProgress, PartMismatchError, PartStore, ignore_progress
from models.bundle.bundle import Bundle
from models.bundle.hub_part import HubPart, encode_hub_manifest, open_hub_part
from models.bundle.manifest import BundleError
from models.signing.roles import EDGE_FIELD, FILES_FIELD, HUB_PART, PART_FIELD, SIZE_FIELD
from wire.process.exit_codes import ExitError


@dataclass(frozen=True)
class HubTarget:
    """The hub part of a version as a target: the bytes of its description, which names every file by SHA-256."""

    part: HubPart
    data: bytes

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the target."""
        return sha256(self.data).hexdigest()

    @property
    def size_bytes(self) -> int:
        """Size of all its files together."""
        return sum(file.size_bytes for file in self.part.manifest.files.values())

    def custom_fields(self, bundle_sha256: str) -> dict[str, Any]:
        """Return the `custom` field of its target; `bundle_sha256`: of the packed bundle that it belongs to."""
        manifest = self.part.manifest
        sizes = {SIZE_FIELD: self.size_bytes, FILES_FIELD: len(manifest.files)}
        return {"version": manifest.version, PART_FIELD: HUB_PART, EDGE_FIELD: bundle_sha256, **sizes}

    def is_placed(self, store: PartStore) -> bool:
        """Tell whether every file of it is in the store."""
        return all(store.has_part(file.sha256, file.size_bytes) for file in self.part.manifest.files.values())


def read_hub_target(folder: Path, bundle: Bundle) -> HubTarget | None:
    """Read the hub part beside a bundle; None if the bundle has its hub files inside, as older ones do.

    BundleError if it is missing, of another version, or not complete. No weights are read.
    """
    if not bundle.manifest.hub_part:
        return None
    part = open_hub_part(folder, bundle.manifest)
    data = encode_hub_manifest(part.manifest)
    if sha256(data).hexdigest() != part.digest:
        raise BundleError(f"{part.path}: was written by hand; write the version with `write_version`")
    return HubTarget(part, data)


def place_hub_files(store: PartStore, target: HubTarget, progress: ByteProgress = ignore_progress) -> None:
    """Take every file of a hub part into the store, hashed in a stream.

    BundleError if a file is not what the part says, ExitError(DISK) if it cannot be read or taken in. What came in
    before the one that failed is removed again.
    """
    fresh: list[str] = []
    done = 0

    def tick(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        progress(done, target.size_bytes)

    try:
        for name, file in target.part.manifest.files.items():
            if store.place_file(target.part.path / name, file.sha256, file.size_bytes, tick):
                fresh.append(file.sha256)
    except PartMismatchError as error:
        store.drop_parts(fresh)
        raise BundleError(str(error)) from None
    except ExitError:
        store.drop_parts(fresh)
        raise
