"""Bundles that tests write, of any manifest and any files."""

import shutil
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from models.bundle.bundle import Bundle, open_bundle
from models.bundle.folder import write_plain_file
from models.bundle.manifest import MANIFEST_FILE, REPORT_FILE, Manifest, check_manifest, encode_manifest
from models.bundle.replacement import check_place, replace_bundle


def write_bundle(path: Path | str, manifest: Manifest, contents: Mapping[str, bytes], report: bytes = b"") -> Bundle:
    """Write a bundle folder in one step (scratch, then a rename), replacing an older one of this model.

    `contents`: file name to bytes; `manifest.files` is filled in here with their digests. `report`: JSON beside the
    content, not covered by the digest. The same manifest and contents give the same bytes. Returns the opened bundle.
    BundleError for an impossible manifest; PlaceError if something else lies at `path`; OSError if the disk refuses:
    then what was there is as it was.
    """
    path = Path(path)
    files = {name: sha256(contents[name]).hexdigest() for name in sorted(contents)}
    manifest = msgspec.structs.replace(manifest, files=files)
    check_manifest(manifest)
    check_place(path, manifest.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        for name, data in contents.items():
            write_plain_file(scratch / name, data)
        if report:
            write_plain_file(scratch / REPORT_FILE, report)
        write_plain_file(scratch / MANIFEST_FILE, encode_manifest(manifest))
        scratch.chmod(0o755)
        replace_bundle(scratch, path, manifest.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return open_bundle(path)
