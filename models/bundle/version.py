"""Writing of model versions: both parts in one folder, bound to each other, in one step.

Rule: what is written is of the newest format, whatever it was made from; weights are linked or streamed, never held.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from models.bundle.bundle import Bundle, open_bundle
from models.bundle.folder import CHUNK_BYTES, hash_open_file, measure_open_file, write_plain_file
from models.bundle.hub_part import (
    MAX_PART_BYTES,
    PART_FILE,
    HubManifest,
    PartFile,
    check_file_digest,
    check_hub_manifest,
    encode_hub_manifest,
    open_hub_part,
)
from models.bundle.manifest import (
    FORMAT,
    HUB_FOLDER,
    MANIFEST_FILE,
    NO_HUB,
    REPORT_FILE,
    BundleError,
    Manifest,
    ParallelPlan,
    check_manifest,
    digest_edge,
    encode_manifest,
)
from models.bundle.replacement import check_place, replace_bundle


def write_version(
    path: Path | str,
    manifest: Manifest,
    edge_contents: Mapping[str, bytes],
    hub: HubManifest,
    hub_files: Mapping[str, bytes | Path],
    *,
    report: bytes = b"",
) -> Bundle:
    """Write both parts of a model version in one step (scratch, then a rename), replacing an older one of this model.

    - `edge_contents`: file name to bytes; `hub_files`: file name to bytes, or the path of a file, which is hard-linked
      where that is possible and else copied in a stream.
    - Filled in here: `files` and `hub_part` of the manifest; `name`, `version`, `edge` and `files` of `hub`. Files that
      `hub` has already must be found as it says.
    - `report`: JSON beside the content, covered by no digest.

    The same values and contents give the same bytes. Returns the opened edge part. BundleError for impossible values,
    PlaceError if something else lies at `path`, OSError if the disk refuses: then what was there is as it was.
    """
    path = Path(path)
    check_place(path, manifest.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        (scratch / HUB_FOLDER).mkdir()
        sized = {name: _place_file(scratch / HUB_FOLDER / name, source) for name, source in sorted(hub_files.items())}
        for name in hub.files.keys() & sized.keys():
            check_file_digest(name, sized[name].sha256, hub.files[name].sha256)
        for name, data in edge_contents.items():
            write_plain_file(scratch / name, data)
        manifest, part = _bind_halves(manifest, edge_contents, hub, sized)
        write_plain_file(scratch / HUB_FOLDER / PART_FILE, part)
        if report:
            write_plain_file(scratch / REPORT_FILE, report)
        write_plain_file(scratch / MANIFEST_FILE, encode_manifest(manifest))
        (scratch / HUB_FOLDER).chmod(0o755)
        scratch.chmod(0o755)
        replace_bundle(scratch, path, manifest.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return open_bundle(path)


def rewrite_version(source: Bundle, manifest: Manifest, path: Path | str | None = None) -> Bundle:
    """Write a version again with the same files and another manifest, at `path`, or in its own place if None.

    A bundle of format 2 becomes one of two parts. The hub's files are linked where that is possible. BundleError if the
    hub part of `source` is not what its manifest promises, or as `write_version`.
    """
    part = open_hub_part(source.path, source.manifest)
    hub = {name: part.path / name for name in part.manifest.files}
    edge = {name: source.read_file(name) for name in source.manifest.files if name not in part.manifest.files}
    manifest = msgspec.structs.replace(manifest, format=FORMAT, hub=NO_HUB, parallel=ParallelPlan())
    return write_version(path or source.path, manifest, edge, part.manifest, hub, report=source.report)


def _bind_halves(
    manifest: Manifest, contents: Mapping[str, bytes], hub: HubManifest, sized: dict[str, PartFile]
) -> tuple[Manifest, bytes]:
    """Return the manifest and the bytes of `part.json`, each with the digest of the other."""
    digests = {name: sha256(contents[name]).hexdigest() for name in sorted(contents)}
    manifest = msgspec.structs.replace(manifest, files=digests, hub_part="")
    part = msgspec.structs.replace(
        hub, name=manifest.name, version=manifest.version, edge=digest_edge(manifest), files=sized
    )
    check_hub_manifest(part)
    data = encode_hub_manifest(part)
    if len(data) > MAX_PART_BYTES:
        raise BundleError(f"{PART_FILE}: bigger than the {MAX_PART_BYTES} bytes allowed")
    manifest = msgspec.structs.replace(manifest, hub_part=sha256(data).hexdigest())
    check_manifest(manifest)
    return manifest, data


def _place_file(place: Path, source: bytes | Path) -> PartFile:
    """Write, link or copy a file to `place`; return its digest and size, taken from what lies there then."""
    if isinstance(source, bytes):
        write_plain_file(place, source)
        return PartFile(sha256(source).hexdigest(), len(source))
    try:
        os.link(source.resolve(strict=True), place)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without hard links
        _copy_file(source, place)
    with place.open("rb") as file:
        size = measure_open_file(file.fileno(), place.name)
        return PartFile(hash_open_file(file.fileno(), place.name), size)


def _copy_file(source: Path, place: Path) -> None:
    with source.open("rb") as taken, place.open("xb") as file:
        shutil.copyfileobj(taken, file, CHUNK_BYTES)
        file.flush()
        os.fsync(file.fileno())
