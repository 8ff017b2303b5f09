"""Bundle folders on disk: reading, verifying and writing a manifest and the files that it names by SHA-256.

A bundle is the edge part of a model version; its hub part (`models/bundle/hub_part.py`) may lie in a folder `hub` in
it, which is not looked at here. In the older format 2 the manifest names the hub's files too.

Rule: every file is read once and hashed, and the bytes handed out are the bytes that were hashed (nothing is reopened
by name, so a swap after the check changes nothing). Anything but plain, expected files is a `BundleError` of one line.
"""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from models.bundle.folder import open_folder, read_plain_file
from models.bundle.manifest import (
    FORMAT,
    HUB_FOLDER,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    REPORT_FILE,
    BundleError,
    Manifest,
    decode_manifest,
)

MAX_FILE_BYTES = 1 << 30
MAX_BUNDLE_BYTES = 1 << 31


class Bundle:
    """A verified bundle, the edge part of a model version: its manifest and the contents of its files.

    `digest` (SHA-256 of the manifest, hex) names its exact content. `report` is the JSON of the forge, unverified, b""
    if there is none.
    """

    def __init__(
        self, path: Path, manifest: Manifest, digest: str, contents: Mapping[str, bytes], report: bytes
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.digest = digest
        self.report = report  # JSON of the forge, unverified; b"" if there is none
        self._contents = contents

    def read_file(self, name: str) -> bytes:
        """Return the verified bytes of one file that the manifest names. BundleError if it names none such."""
        try:
            return self._contents[name]
        except KeyError:
            raise BundleError(f"{self.manifest.model} has no file {name!r}") from None


def open_bundle(path: Path | str) -> Bundle:
    """Read and verify a whole bundle folder into memory.

    At most `MAX_FILE_BYTES` per file and `MAX_BUNDLE_BYTES` together. BundleError, with the path in front, if a file is
    missing, extra, too big, a link or a device, or if its SHA-256 is not the manifest's.
    """
    with open_folder(Path(path)) as folder:
        return _read_folder(Path(path), folder, edge_alone=False)


def open_edge_part(path: Path | str) -> Bundle:
    """Read and verify the edge part alone: as `open_bundle`, but in format 2 the hub's files are not read at all.

    The hub's files are `models.bundle.hub_part.open_hub_part`'s.
    """
    with open_folder(Path(path)) as folder:
        return _read_folder(Path(path), folder, edge_alone=True)


def read_manifest(path: Path | str) -> Manifest:
    """Read the manifest of a bundle folder alone, checked, before anything it names is read.

    BundleError if unusable.
    """
    with open_folder(Path(path)) as folder:
        return decode_manifest(read_plain_file(folder, MANIFEST_FILE, MAX_MANIFEST_BYTES))


def _read_folder(path: Path, folder: int, *, edge_alone: bool) -> Bundle:
    if MANIFEST_FILE not in os.listdir(folder):
        raise BundleError(f"no {MANIFEST_FILE} in it, so it is not a bundle")
    raw = read_plain_file(folder, MANIFEST_FILE, MAX_MANIFEST_BYTES)
    manifest = decode_manifest(raw)
    _check_names(set(os.listdir(folder)), manifest)
    contents: dict[str, bytes] = {}
    left = MAX_BUNDLE_BYTES
    left_there = set(manifest.hub.files) if edge_alone else set()
    for name in sorted(manifest.files.keys() - left_there):
        data = read_plain_file(folder, name, min(MAX_FILE_BYTES, left))
        if sha256(data).hexdigest() != manifest.files[name]:
            raise BundleError(f"{name}: its content is not what the manifest promises (SHA-256 differs)")
        contents[name] = data
        left -= len(data)
    report = read_plain_file(folder, REPORT_FILE, MAX_MANIFEST_BYTES) if REPORT_FILE in os.listdir(folder) else b""
    return Bundle(path, manifest, sha256(raw).hexdigest(), contents, report)


def _check_names(found: set[str], manifest: Manifest) -> None:
    expected = {MANIFEST_FILE, *manifest.files}
    for name in sorted(expected - found):
        raise BundleError(f"{name}: named by the manifest, but missing")
    beside = {REPORT_FILE, HUB_FOLDER} if manifest.format == FORMAT else {REPORT_FILE}
    for name in sorted(found - expected - beside):
        raise BundleError(f"{name!r}: not named by the manifest")
