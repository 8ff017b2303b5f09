"""Makes a data set's files from what its publisher offers, downloaded or found in a folder, and checks their content.

Rule: nothing is put in place before its content has the SHA-256 that `sources` names. What is downloaded is data of
strangers: it is read within limits, and no part of it is unpickled or run.
"""

import contextlib
import gzip
import hashlib
import io
import lzma
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from ssl import SSLError
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt

from models.zoo.sources import DATASETS, MITBIH_RECORDS, DataSet
from wire.process.exit_codes import ExitCode, ExitError

CIFAR_LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

MAX_BYTES = 512 << 20  # of one file, downloaded or unpacked
_WAIT_S = 60.0
_CHUNK_BYTES = 1 << 20
_DEPTH = 3  # archives within archives
# what libraries raise for files that are none of their kind: archives, compressed files, arrays of another shape
_UNREADABLE = (
    *(ValueError, EOFError, TypeError, IndexError, RuntimeError, gzip.BadGzipFile),
    *(lzma.LZMAError, zlib.error, zipfile.BadZipFile),
)
Progress = Callable[[int, int], None]
Contents = Iterator[tuple[str, bytes]]


def fetch_dataset(known: DataSet, root: Path, mirror: str, tell: Progress) -> Path:
    """Download what the publisher offers, and pack it into a folder below `root`; returns that folder.

    `mirror`: a URL below which another server has the same files, in a folder of the set's name; "" = the publisher.
    `tell(done, all)` of the files. What was downloaded stays until all of it is there, so that a second run goes on.
    ExitError(DOWNLOAD) if a file cannot be had; otherwise as `pack_dataset`.
    """
    beside = root / f".fetch-{known.name}"
    beside.mkdir(parents=True, exist_ok=True)
    files = [beside / Path(urlsplit(url).path).name for url in known.urls]
    try:
        for done, (url, file) in enumerate(zip(known.urls, files, strict=True)):
            tell(done, len(files))
            if not file.exists():
                _download(f"{mirror.rstrip('/')}/{known.name}/{quote(file.name)}" if mirror else url, file, known)
        tell(len(files), len(files))
    except ExitError:
        with contextlib.suppress(OSError):  # that has a file already
            beside.rmdir()
        raise
    try:
        return pack_dataset(known, beside, root)
    finally:  # what did not fit is downloaded anew by the next run
        for file in files:
            file.unlink()
        beside.rmdir()


def pack_dataset(known: DataSet, given: Path, root: Path) -> Path:
    """Make the set's files from what its publisher offers, a file or folder `given`; returns their folder below `root`.

    Archives are looked into. ExitError(MISSING) if a file of the publisher's is not there, (CHECK_FAILED) if what was
    made is not the set that figures were made with, (USAGE) if a file of another content is in its place.
    """
    place = root / known.name
    if strange := [file for file in _list_present(known, place) if not _is_published(known, file)]:
        raise ExitError(ExitCode.USAGE, f"{strange[0]}: is there, and is not the published file; move it elsewhere")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".pack-{known.name}-", dir=root) as scratch:
        made = Path(scratch)
        try:
            for name, content in _PACKERS[known.name](_PublishedFiles(given, known)):
                (made / name).write_bytes(content)
        except _UNREADABLE as error:
            raise ExitError(ExitCode.CHECK_FAILED, f"{known.name}: {given} cannot be read: {error}") from None
        for name in known.files:
            check_content(known, made / name)
        place.mkdir(exist_ok=True)
        for name in known.files:
            (made / name).replace(place / name)
    return place


def _list_present(known: DataSet, place: Path) -> list[Path]:
    return [place / name for name in known.files if (place / name).exists()]


def _is_published(known: DataSet, file: Path) -> bool:
    try:
        check_content(known, file)
    except ExitError:
        return False
    return True


def check_content(known: DataSet, file: Path) -> None:
    """ExitError(CHECK_FAILED) if the content of one of a set's files is not what it should be."""
    try:
        found = digest_content(file)
    except (*_UNREADABLE, OSError) as error:
        raise ExitError(ExitCode.CHECK_FAILED, f"{known.name}: {file.name} cannot be read: {error}") from None
    if found != known.files[file.name]:
        raise ExitError(
            ExitCode.CHECK_FAILED,
            f"{known.name}: {file.name} is not the published one (SHA-256 {found}, expected {known.files[file.name]});"
            f" take its files anew from {known.page}",
        )


def digest_content(file: Path) -> str:
    """SHA-256 in hex of what a file has in it: decompressed, and of an archive of arrays each by name and layout."""
    digest = hashlib.sha256()
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as arrays:
            for name in sorted(arrays.files):
                array = arrays[name]
                digest.update(f"{name} {array.dtype.str} {array.shape}\0".encode() + array.tobytes())
        return digest.hexdigest()
    opener: Callable[[Path], Any] = gzip.open if file.suffix == ".gz" else lzma.open
    with opener(file) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _download(url: str, place: Path, known: DataSet) -> None:
    host = urlsplit(url).netloc
    part = place.with_name(f"{place.name}.part")
    try:
        with part.open("wb") as file, urlopen(url, timeout=_WAIT_S) as answer:  # noqa: S310 - the publisher or a mirror
            _copy_limited(answer, file, url)
    except HTTPError as error:
        why = f"{host} answers {error.code} {error.reason}"
        error.close()
    except (URLError, TimeoutError, ConnectionError, SSLError, HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        why = f"{host} cannot be reached ({getattr(cause, 'strerror', None) or cause})"
    else:
        part.replace(place)
        return
    finally:
        part.unlink(missing_ok=True)
    raise ExitError(
        ExitCode.DOWNLOAD,
        f"{known.name}: {why}; try again, name another server with --mirror, or download {url} elsewhere and type"
        f" `skerry data pack {known.name} FOLDER`",
    )


def _copy_limited(source: BinaryIO, target: BinaryIO, name: str) -> None:
    left = MAX_BYTES
    while chunk := source.read(min(_CHUNK_BYTES, left + 1)):
        left -= len(chunk)
        if left < 0:
            raise ExitError(ExitCode.CHECK_FAILED, f"{name}: more than {MAX_BYTES >> 20} MiB")
        target.write(chunk)


class _PublishedFiles:
    """Files of a publisher in a folder or an archive, at any depth, by the end of their path."""

    def __init__(self, given: Path, known: DataSet) -> None:
        self._given, self._known = given, known

    def read(self, name: str) -> bytes:
        """One file. ExitError(MISSING) if it is not there."""
        for found, content in self.list_matching(lambda path: path.rpartition("/")[2] == name):
            del found
            return content
        raise ExitError(
            ExitCode.MISSING,
            f"{self._given}: no {name} in it, which {self._known.name} is made of; see {self._known.page}",
        )

    def list_matching(self, wanted: Callable[[str], bool]) -> Contents:
        """Each file whose path, with `/`, is wanted."""
        files = [self._given] if self._given.is_file() else sorted(self._given.rglob("*"))
        for file in files:
            if not file.is_file():
                continue
            if zipfile.is_zipfile(file) and file.suffix != ".npz":
                yield from _list_archive(file, wanted, _DEPTH)
            elif wanted(file.as_posix()):
                yield file.as_posix(), file.read_bytes()


def _list_archive(file: Path | BinaryIO, wanted: Callable[[str], bool], depth: int) -> Contents:
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            nested = entry.filename.endswith(".zip") and depth > 1
            if entry.is_dir() or not (nested or wanted(entry.filename)):
                continue
            held = io.BytesIO()
            with archive.open(entry) as stream:
                _copy_limited(stream, held, entry.filename)  # type: ignore[arg-type]
            if nested:
                yield from _list_archive(held, wanted, depth - 1)
            else:
                yield entry.filename, held.getvalue()


def _pack_fashion_mnist(files: _PublishedFiles) -> Contents:
    for name in DATASETS["fashion_mnist"].files:
        yield name, files.read(name)


def _pack_clinc150(files: _PublishedFiles) -> Contents:
    yield "data_full.json.gz", _compress(files.read("data_full.json"))


def _pack_cmapss(files: _PublishedFiles) -> Contents:
    """NASA's tables; the copy that figures were made with has no blanks at the ends of lines of its training part."""
    for name in DATASETS["cmapss_fd001"].files:
        table = files.read(name.removesuffix(".gz"))
        yield name, _compress(re.sub(rb"(?<! ) +\n", b"\n", table) if name.startswith("train") else table)


def _pack_cifar10(files: _PublishedFiles) -> Contents:
    """The JPEG files unchanged behind one another: count, lengths, labels, files; class by class, by file name."""
    for part in ("train", "test"):
        pictures: dict[str, list[tuple[str, bytes]]] = {label: [] for label in CIFAR_LABELS}

        def is_picture(path: str, part: str = part) -> bool:
            folders = path.split("/")
            return path.endswith(".jpg") and len(folders) > 2 and folders[-3] == part and folders[-2] in CIFAR_LABELS

        for path, content in files.list_matching(is_picture):
            pictures[path.split("/")[-2]].append((path.rpartition("/")[2], content))
        ordered = [(label, each[1]) for label, name in enumerate(CIFAR_LABELS) for each in sorted(pictures[name])]
        lengths = np.array([len(content) for _, content in ordered], np.uint32).tobytes()
        labels = bytes(label for label, _ in ordered)
        whole = b"C10J" + struct.pack("<I", len(ordered)) + lengths + labels + b"".join(each for _, each in ordered)
        yield f"{part}.c10j.xz", lzma.compress(whole, preset=6)


def _pack_mitbih(files: _PublishedFiles) -> Contents:
    """Each record's signal in thousandths of a millivolt, its R peaks by sample and their annotations by letter."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "records": np.array([str(record) for record in MITBIH_RECORDS]),
        "fs": np.array(128),
    }
    for record in MITBIH_RECORDS:
        signal = _read_array(files, f"{record}_SIG_II.npy").astype(np.float64)
        beats = _read_array(files, f"{record}_BEAT.npy")
        arrays[f"sig_{record}"] = np.rint(signal * 1000).astype(np.int16)
        arrays[f"r_{record}"] = beats[:, 0].astype(np.int32)
        arrays[f"lab_{record}"] = np.array([ord(letter) for letter in beats[:, 1]], np.uint8)
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    yield "mitbih_lead2_128hz.npz", packed.getvalue()


def _read_array(files: _PublishedFiles, name: str) -> npt.NDArray[Any]:
    return np.asarray(np.load(io.BytesIO(files.read(name)), allow_pickle=False))


def _compress(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


_PACKERS: Mapping[str, Callable[[_PublishedFiles], Contents]] = {
    "fashion_mnist": _pack_fashion_mnist,
    "clinc150": _pack_clinc150,
    "cmapss_fd001": _pack_cmapss,
    "cifar10_jpeg": _pack_cifar10,
    "mitbih_lead2": _pack_mitbih,
}
