"""The hub part of a published version: its files in the part store, and what its target says of them.

Rule: files come in before anything lists them; a version is listed with both targets, the bundle and its hub part, in
one change of its role, so no crash, full disk or missing signature leaves one without the other.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from cloud_hub.repository.parts import ByteProgress, PartMismatchError, PartStore
from models.bundle.bundle import Bundle
from models.bundle.hub_part import HubKind, HubPart, encode_hub_manifest, open_hub_part
from models.bundle.manifest import BundleError, Manifest
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


class ByteCount:
    """Bytes done of `total_bytes` over several steps, told to `progress`."""

    def __init__(self, progress: ByteProgress, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def tick(self, size_bytes: int) -> None:
        """Count so many bytes more."""
        self._done_bytes += size_bytes
        self._progress(self._done_bytes, self._total_bytes)


def take_hub_part(store: PartStore, target: HubTarget, checked_as: Manifest | None, progress: ByteProgress) -> None:
    """Take every file of a hub part into the store, hashed in a stream, and check its graphs and weights.

    `checked_as`: the edge part that they have to fit; None = they are not looked at. BundleError if a file is not what
    the part says, or no hub could serve it; ExitError(DISK) if it cannot be read or taken in. What came in before is
    removed again.
    """
    manifest = checked_as if target.part.manifest.kind is HubKind.GRAPHS else None
    count = ByteCount(progress, target.size_bytes + (target.part.manifest.weight_bytes if manifest else 0))
    fresh: list[str] = []
    try:
        for name, file in target.part.manifest.files.items():
            if store.place_file(target.part.path / name, file.sha256, file.size_bytes, count.tick):
                fresh.append(file.sha256)
        if manifest:
            _check_model(target.part, manifest, count)
    except PartMismatchError as error:
        store.drop_parts(fresh)
        raise BundleError(str(error)) from None
    except (BundleError, ExitError):
        store.drop_parts(fresh)
        raise


def _check_model(part: HubPart, manifest: Manifest, count: ByteCount) -> None:
    from models.graph.hub_model import check_hub_part  # noqa: PLC0415 - torch takes seconds: only where one is published

    check_hub_part(part, manifest, count.tick)
