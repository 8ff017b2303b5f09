"""The hub part of a model version: graphs and weights of any size, in a folder `hub` beside the edge part.

`part.json` names every file by SHA-256 and size and the edge part by the digest of its manifest; the manifest names
`part.json` by its own digest. So halves of two versions never run together. Devices never have this folder.
Rule: graphs are read whole, within a limit; weights are only ever opened and streamed. What is missing, changed, a link
or of another version is a `BundleError` of one line. A bundle of format 2 has its hub files among its own and no
`part.json`; it is shown through the same `HubPart`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Self

import msgspec

from models.bundle.folder import (
    MAX_STREAMED_BYTES,
    ByteCallback,
    hash_open_file,
    measure_open_file,
    open_folder,
    open_plain_file,
    read_plain_file,
)
from models.bundle.manifest import (
    FILE_NAME,
    HUB_FOLDER,
    JOINT_FORMAT,
    MANIFEST_FILE,
    BundleError,
    Manifest,
    ModelKind,
    ParallelPlan,
    Provenance,
    digest_edge,
    encode_manifest,
    plan_rules,
)

PART_FILE = "part.json"
PART_FORMAT = 1
MAX_PART_BYTES = 1 << 20
MAX_GRAPH_FILE_BYTES = 96 << 20  # of a graph, as the lint allows it
MAX_HUB_FILES = 2000
_DIGEST = re.compile(r"[0-9a-f]{64}")


class HubKind(StrEnum):
    """What a hub part is: `graphs` of allowed operations with weights beside them, two of `onnx`, or a `text` template.

    A part of kind `text` names a language model of the hub (`models/bundle/text_part.py`) and has no weights.
    """

    GRAPHS = "graphs"
    ONNX = "onnx"
    TEXT = "text"


class PartFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a hub part: SHA-256 in hex and size in bytes."""

    sha256: str
    size_bytes: int


class HubManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Description of a hub part (`part.json`).

    `name`, `version`: of the model; `edge`: digest of the edge part's manifest (`digest_edge`). `graph`: file of both
    graphs, of the tail if `whole` (ONNX) names the other, or the template of a text. `weights`: files of weights in
    the order they are read. `files`: every file by name.
    """

    format: int = PART_FORMAT
    name: str
    version: int
    edge: str = ""
    kind: HubKind = HubKind.GRAPHS
    graph: str
    whole: str = ""
    weights: tuple[str, ...] = ()
    parallel: ParallelPlan = ParallelPlan()
    files: dict[str, PartFile] = msgspec.field(default_factory=dict)
    provenance: Provenance = Provenance()

    @property
    def model(self) -> str:
        """Name of the version it belongs to, as in `digits@7`."""
        return f"{self.name}@{self.version}"

    @property
    def weight_bytes(self) -> int:
        """Size of all files of weights together."""
        return sum(self.files[name].size_bytes for name in self.weights)


class _PartFormat(msgspec.Struct):
    format: int


_format_decoder = msgspec.json.Decoder(_PartFormat)
_decoder = msgspec.json.Decoder(HubManifest)


def encode_hub_manifest(part: HubManifest) -> bytes:
    """Encode as readable JSON: the same bytes for the same values, so that their SHA-256 names the hub part."""
    return msgspec.json.format(msgspec.json.encode(part, order="deterministic"), indent=1) + b"\n"


def decode_hub_manifest(data: bytes) -> HubManifest:
    """Decode and check `part.json`. BundleError, one line, for anything that is not exactly one of `PART_FORMAT`."""
    if len(data) > MAX_PART_BYTES:
        raise BundleError(f"{PART_FILE}: bigger than the {MAX_PART_BYTES} bytes allowed")
    try:
        found = _format_decoder.decode(data).format
        if found != PART_FORMAT:
            hint = (
                "made by a newer version: update this installation" if found > PART_FORMAT else "not a format of ours"
            )
            raise BundleError(f"{PART_FILE}: format {found}, this version reads {PART_FORMAT} ({hint})")
        part = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{PART_FILE}: {error}") from None
    check_hub_manifest(part)
    return part


def check_hub_manifest(part: HubManifest) -> None:
    """Check every value. BundleError, naming the key, for the first value that is impossible."""
    named = [part.graph, *([part.whole] if part.whole else []), *part.weights]
    rules = (
        ("name", bool(FILE_NAME.fullmatch(part.name))),
        ("version", part.version >= 1),
        ("edge", bool(_DIGEST.fullmatch(part.edge))),
        ("kind, whole or weights", _kind_fits(part)),
        ("files", set(named) == part.files.keys() and len(named) == len(part.files) <= MAX_HUB_FILES),
        ("files: names, digests or sizes", all(_file_fits(name, file) for name, file in part.files.items())),
        *plan_rules(part.parallel),
    )
    for key, fits in rules:
        if not fits:
            raise BundleError(f"{PART_FILE}: {key} is impossible")


def _kind_fits(part: HubManifest) -> bool:
    has = (bool(part.whole), bool(part.weights))
    return has == {HubKind.GRAPHS: (False, True), HubKind.ONNX: (True, False), HubKind.TEXT: (False, False)}[part.kind]


def _file_fits(name: str, file: PartFile) -> bool:
    plain = bool(FILE_NAME.fullmatch(name)) and name not in {PART_FILE, MANIFEST_FILE}
    return plain and bool(_DIGEST.fullmatch(file.sha256)) and 0 <= file.size_bytes <= MAX_STREAMED_BYTES


class WeightFiles:
    """Open files of weights by name, in the order they are read; their sizes were checked, their content was not.

    Whoever holds a descriptor reads that very file, whatever its name points to by then. Close them, or use `with`.
    """

    def __init__(self, part: HubManifest, descriptors: Mapping[str, int]) -> None:
        self._part = part
        self.descriptors = dict(descriptors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def file_digest(self, name: str) -> str:
        """Return the SHA-256 (hex) that a file must have."""
        return self._part.files[name].sha256

    def verify(self, tick: ByteCallback | None = None) -> None:
        """Read every file once and compare its SHA-256. BundleError, naming the first file that differs."""
        for name, descriptor in self.descriptors.items():
            check_file_digest(name, hash_open_file(descriptor, name, tick), self.file_digest(name))

    def close(self) -> None:
        """Close all descriptors; a second call does nothing."""
        descriptors, self.descriptors = self.descriptors, {}
        for descriptor in descriptors.values():
            os.close(descriptor)


class HubPart:
    """An opened hub part: its manifest is checked against the edge part, its files are there in their sizes.

    `path`: folder of its files. `digest`: SHA-256 (hex) of `part.json`; in format 2 of the bundle's manifest.
    """

    def __init__(self, path: Path, manifest: HubManifest, digest: str) -> None:
        self.path = path
        self.manifest = manifest
        self.digest = digest

    def read_file(self, name: str) -> bytes:
        """Return the verified bytes of a graph's file, at most `MAX_GRAPH_FILE_BYTES`.

        BundleError for weights, which are only streamed (`open_weights`), and for a file that was changed.
        """
        if name not in {self.manifest.graph, self.manifest.whole} - {""}:
            raise BundleError(f"{self.manifest.model} has no graph {name!r}")
        with open_folder(self.path) as folder:
            data = read_plain_file(folder, name, MAX_GRAPH_FILE_BYTES)
            check_file_digest(name, sha256(data).hexdigest(), self.manifest.files[name].sha256)
        return data

    def require_graphs(self) -> None:
        """BundleError, one line, if the part has no graphs, because it asks a language model."""
        if self.manifest.kind is HubKind.TEXT:
            raise BundleError(f"{self.manifest.model}: its hub part asks a language model and has no graphs")

    def open_weights(self) -> WeightFiles:
        """Open the files of weights, without following links. BundleError if one is missing or of another size."""
        with open_folder(self.path) as folder, ExitStack() as undo:
            descriptors: dict[str, int] = {}
            for name in self.manifest.weights:
                descriptors[name] = open_plain_file(folder, name)
                undo.callback(os.close, descriptors[name])
                _check_size(descriptors[name], name, self.manifest.files[name])
            undo.pop_all()
        return WeightFiles(self.manifest, descriptors)

    def verify_weights(self, tick: ByteCallback | None = None) -> None:
        """Read every file of weights once and compare its SHA-256. BundleError with the path in front."""
        with self.open_weights() as files, _prefix_errors(self.path):
            files.verify(tick)


def open_hub_part(path: Path | str, manifest: Manifest) -> HubPart:
    """Open the hub part that belongs to the edge part `manifest`; `path` is the version's folder.

    BundleError, one line, if it is missing, belongs to another version, or a file is missing, extra, a link or of
    another size. No weights are read.
    """
    path = Path(path)
    if manifest.format == JOINT_FORMAT:
        return _open_joint_part(path, manifest)
    place = path / HUB_FOLDER
    if place.is_symlink() or not place.is_dir():
        raise BundleError(f"{place}: the hub part of {manifest.model} is not there")
    with open_folder(place) as folder:
        data = read_plain_file(folder, PART_FILE, MAX_PART_BYTES)
        part = decode_hub_manifest(data)
        check_halves(manifest, part, sha256(data).hexdigest())
        _check_files(folder, part)
    return HubPart(place, part, manifest.hub_part)


def check_halves(manifest: Manifest, part: HubManifest, digest: str) -> None:
    """Check that an edge and a hub part belong together; `digest` is that of the hub part's `part.json`.

    BundleError, one line, if one of them is of another version or was made for another half.
    """
    if part.model != manifest.model:
        raise BundleError(f"{PART_FILE}: the hub part is of {part.model}, the edge part of {manifest.model}")
    if digest != manifest.hub_part:
        raise BundleError(f"{PART_FILE}: is not the hub part that the manifest of {manifest.model} names")
    if (part.kind is HubKind.TEXT) is not (manifest.kind is ModelKind.TEXT):
        raise BundleError(f"{PART_FILE}: of kind {part.kind}, the edge part of {manifest.model} is a {manifest.kind}")
    if part.edge != digest_edge(manifest):
        raise BundleError(f"{PART_FILE}: was made for another edge part of {manifest.model}")


def check_file_digest(name: str, found: str, promised: str) -> None:
    """Compare digests in hex. BundleError that names the file if they differ."""
    if found != promised:
        raise BundleError(f"{name}: its content is not what the manifest promises (SHA-256 differs)")


def _open_joint_part(path: Path, manifest: Manifest) -> HubPart:
    """Show the hub's half of a bundle of format 2 as a hub part; its sizes are those that are found."""
    hub = manifest.hub
    with open_folder(path) as folder:
        files = {}
        for name in hub.files:
            handle = open_plain_file(folder, name)
            try:
                files[name] = PartFile(manifest.files[name], measure_open_file(handle, name))
            finally:
                os.close(handle)
    part = HubManifest(
        name=manifest.name, version=manifest.version, edge=digest_edge(manifest),
        kind=HubKind.ONNX if hub.whole else HubKind.GRAPHS, graph=hub.graph, whole=hub.whole, weights=hub.weights,
        parallel=manifest.parallel, files=files, provenance=manifest.provenance,
    )  # fmt: skip
    return HubPart(path, part, sha256(encode_manifest(manifest)).hexdigest())


def _check_files(folder: int, part: HubManifest) -> None:
    """Check that the named files lie in the folder in their sizes, and nothing else does."""
    found, expected = set(os.listdir(folder)), {PART_FILE, *part.files}
    for name in sorted(expected - found):
        raise BundleError(f"{name}: named by {PART_FILE}, but missing")
    for name in sorted(found - expected):
        raise BundleError(f"{name!r}: not named by {PART_FILE}")
    for name, file in part.files.items():
        handle = open_plain_file(folder, name)
        try:
            _check_size(handle, name, file)
        finally:
            os.close(handle)


def _check_size(handle: int, name: str, file: PartFile) -> None:
    size = measure_open_file(handle, name)
    if size != file.size_bytes:
        raise BundleError(f"{name}: has {size} bytes, {PART_FILE} says {file.size_bytes}")


@contextmanager
def _prefix_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from None
