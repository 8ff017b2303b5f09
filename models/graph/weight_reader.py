"""Weight reader: safetensors files straight into the memory of their tensors, checked and hashed as the bytes pass.

The one way in which an engine of one process and a rank of many come by weights. Every byte is read once: into the
tensor that keeps it, never into a buffer of the whole file and never into memory that the file shares.

Rule: the header is judged before anything is read (safetensors format: 8 bytes of length, JSON, data without holes);
what is missing, too much, of another type or shape, out of the file, or not a number is a `BundleError` of one line.
Tensors of files that others wrote (`TensorSignature.source`) may lie beside tensors that no graph wants.
"""

import math
import mmap
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from hashlib import sha256
from typing import NamedTuple, Self

import msgspec
import torch
from torch import Tensor

from models.bundle.folder import ByteCallback
from models.bundle.hub_part import WeightFiles, check_file_digest
from models.bundle.manifest import BundleError
from models.graph.aten_operations import DTYPES
from models.graph.format import TensorSignature, source_names
from models.graph.weight_memory import allocate_weight
from models.graph.weight_source import BytesSource, FileSource, WeightSource, make_source_error
from models.graph.weights import WEIGHT_NAME

MAX_HEADER_BYTES = 100_000_000  # as safetensors itself limits it
CHUNK_BYTES = 1 << 22
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_DIRECT_RUN_BYTES = 1 << 20  # a run of a divided tensor that is worth a call of its own
_CHUNKS_AHEAD = 8  # of a file, that may be read and not yet hashed
_MAX_FILES_AT_ONCE = 4
_SHOWN = 5  # names in a message
_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_OTHER_TYPE_BYTES = {"U64": 8, "U32": 4, "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}  # of tensors left alone


class TensorSlice(NamedTuple):
    """One of `ways` equal parts of a weight along `axis`: part number `at`; `axis` None = the whole of it."""

    name: str
    axis: int | None = None
    at: int = 0
    ways: int = 1


class StoredTensor(NamedTuple):
    """Tensor in a file. `dtype` as torch calls it, or as the file does if torch's is unknown; `begin`, `end`: bytes."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class WeightTable:
    """Index of all files: where each tensor lies. BundleError unless the headers are sound and hold what is wanted."""

    def __init__(self, sources: Sequence[WeightSource], ports: Mapping[str, TensorSignature]) -> None:
        self.sources = tuple(sources)
        self.headers = tuple(read_header(source) for source in sources)
        self.names = source_names(ports)  # of a weight by its name in the files
        self.ports = ports
        self._homes: dict[str, int] = {}
        for at, header in enumerate(self.headers):
            if header.tensors.keys() & self._homes.keys():
                raise BundleError("weights: a name stands in two files")
            self._homes |= dict.fromkeys(header.tensors, at)
        self._check_names()
        for stored, name in self.names.items():
            _check_stored(name, self.headers[self._homes[stored]].tensors[stored], ports[name])

    def find(self, name: str) -> tuple[WeightSource, StoredTensor]:
        """Return where a weight lies. BundleError if there is none of this name."""
        port = self.ports.get(name)
        if port is None:
            raise BundleError(f"weights: missing or too many: {name[:20]}")
        stored = port.source or name
        return self.sources[self._homes[stored]], self.headers[self._homes[stored]].tensors[stored]

    def _check_names(self) -> None:
        wrong = [name for name in self.ports if not WEIGHT_NAME.fullmatch(name)]
        if wrong:
            raise BundleError(f"weights: {wrong[0][:40]!r} is not a valid weight name")
        foreign = any(port.source for port in self.ports.values())
        surplus = {name for name in self._homes if not foreign or WEIGHT_NAME.fullmatch(name)} - self.names.keys()
        odd = sorted(self.names.keys() - self._homes.keys()) + sorted(surplus)
        if odd:
            raise BundleError(f"weights: missing or too many: {', '.join(name[:20] for name in odd[:_SHOWN])}")


class FileHeader(NamedTuple):
    """Header of a file: its bytes, and the tensors in the order of their data."""

    data: bytes
    tensors: dict[str, StoredTensor]


class _HeaderEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_entry_decoder = msgspec.json.Decoder(_HeaderEntry)
_header_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_header(source: WeightSource) -> FileHeader:
    """Read and check the header of a file: every tensor inside it, none over another, no byte that is none's."""
    if source.size < _LENGTH_BYTES:
        raise make_source_error(source, "is not a safetensors file: too short")
    length = int.from_bytes(_read_bytes(source, 0, _LENGTH_BYTES), "little")
    begin = _LENGTH_BYTES + length
    if length > MAX_HEADER_BYTES or begin > source.size:
        raise make_source_error(source, f"is not a safetensors file: a header of {length} bytes")
    data = _read_bytes(source, 0, begin)
    try:
        entries = _header_decoder.decode(data[_LENGTH_BYTES:])
        entries.pop(_METADATA, None)
        found = {name: _place_tensor(_entry_decoder.decode(raw), begin) for name, raw in entries.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise make_source_error(source, f"is not a safetensors file: {' '.join(str(error).split())[:200]}") from None
    tensors = dict(sorted(found.items(), key=lambda item: (item[1].begin, item[1].end)))
    for name, tensor in tensors.items():
        if tensor.begin != begin:
            raise make_source_error(source, f"its header lies: {name[:40]} overlaps another tensor or leaves a hole")
        begin = tensor.end
    if begin != source.size:
        raise make_source_error(source, f"its header lies: tensors up to byte {begin} of {source.size}")
    return FileHeader(data, tensors)


def _place_tensor(entry: _HeaderEntry, first: int) -> StoredTensor:
    """Place a tensor in its file, whose data begin at `first`. ValueError if its numbers cannot be."""
    dtype = _TYPES.get(entry.dtype, "")
    width = DTYPES[dtype].itemsize if dtype else _OTHER_TYPE_BYTES.get(entry.dtype, 0)
    begin, end = entry.data_offsets
    if not width:
        raise ValueError(f"elements of type {entry.dtype[:20]!r}")
    if min(begin, *entry.shape, 0) < 0 or end - begin != math.prod(entry.shape) * width:
        raise ValueError(f"bytes {begin} to {end} for {entry.dtype} {list(entry.shape)}")
    return StoredTensor(dtype or entry.dtype, entry.shape, first + begin, first + end)


def _check_stored(name: str, stored: StoredTensor, port: TensorSignature) -> None:
    if stored.dtype != port.dtype or stored.shape != port.shape:
        raise BundleError(
            f"weights: {name} is {stored.dtype} {list(stored.shape)}, not {port.dtype} {list(port.shape)}"
        )


def load_weights(files: WeightFiles, ports: Mapping[str, TensorSignature]) -> dict[str, Tensor]:
    """Read every weight, whole, and compare the SHA-256 of every file: each byte is read once.

    BundleError if the files are not what their manifest promises, or not what the graphs want.
    """
    sources = [FileSource(handle, name, once=True) for name, handle in files.descriptors.items()]
    try:
        return _load_table(WeightTable(sources, ports), [files.file_digest(name) for name in files.descriptors])
    finally:
        for source in sources:
            source.close()


def check_weights(files: WeightFiles, ports: Mapping[str, TensorSignature], tick: ByteCallback | None = None) -> None:
    """Check headers and values of every weight as a load does, through one small buffer; nothing is kept or hashed.

    `tick`: told the bytes of each piece. BundleError as `load_weights`.
    """
    sources = [FileSource(handle, name) for name, handle in files.descriptors.items()]
    table, scratch = WeightTable(sources, ports), torch.empty(CHUNK_BYTES, dtype=torch.uint8)
    if tick:
        tick(sum(len(header.data) for header in table.headers))
    for name, port in ports.items():
        source, stored = table.find(name)
        for at in range(stored.begin, stored.end, CHUNK_BYTES):
            piece = scratch[: min(CHUNK_BYTES, stored.end - at)]
            source.read_into(at, _byte_view(piece))
            _check_values(name, piece.view(DTYPES[port.dtype]))
            if tick:
                tick(len(piece))


def load_packed_weights(files: Sequence[bytes], ports: Mapping[str, TensorSignature]) -> dict[str, Tensor]:
    """Read every weight of files that are in memory. BundleError as `load_weights`."""
    return _load_table(WeightTable([BytesSource(data) for data in files], ports), [""] * len(files))


def load_slices(
    files: Iterable[int], ports: Mapping[str, TensorSignature], slices: Mapping[str, TensorSlice]
) -> dict[str, Tensor]:
    """Read parts of weights by key; nothing else of the files is read, and nothing is hashed.

    `files`: descriptors of all files of a hub part, whose SHA-256 the caller has compared. BundleError as
    `load_weights`, and for a weight that cannot be divided so.
    """
    table = WeightTable([FileSource(handle) for handle in files], ports)
    scratch = mmap.mmap(-1, CHUNK_BYTES)  # its pages go back at once: freed heap would stay with the process
    return {key: _read_slice(table, wanted, scratch) for key, wanted in slices.items()}


def _load_table(table: WeightTable, digests: Sequence[str]) -> dict[str, Tensor]:
    held = {}
    for name, port in table.ports.items():
        held[name] = allocate_weight(name, DTYPES[port.dtype], port.shape)
    loaders = [_FileLoader(*each, held, table.names) for each in zip(table.sources, table.headers, strict=True)]
    with ThreadPoolExecutor(min(_MAX_FILES_AT_ONCE, os.cpu_count() or 1)) as pool:
        for part in [pool.submit(loader.load, digest) for loader, digest in zip(loaders, digests, strict=True)]:
            part.result()
    return held


class _FileLoader:
    """Loader of one file in one pass into the tensors of `held`; `names`: of weights by their names in the files."""

    def __init__(
        self, source: WeightSource, header: FileHeader, held: Mapping[str, Tensor], names: Mapping[str, str]
    ) -> None:
        self._source = source
        self._header = header
        self._held = held
        self._names = names

    def load(self, digest: str) -> None:
        """Read the file; `digest`: the SHA-256 (hex) that it must have, "" = unknown."""
        with StreamHasher() if digest else nullcontext() as hasher:
            sound = self._read_tensors(hasher)
            if hasher:  # before anything is said of the values: a damaged file is called damaged
                check_file_digest(self._source.name, hasher.finish(), digest)
        for stored in self._header.tensors.keys() & self._names.keys() if not sound else ():
            _check_values(self._names[stored], self._held[self._names[stored]])

    def _read_tensors(self, hasher: "StreamHasher | None") -> bool:
        """Read all tensors in the order of their bytes; returns whether every value is allowed."""
        sound = True
        if hasher:
            hasher.add(memoryview(self._header.data))
        for stored, tensor in self._header.tensors.items():
            if stored in self._names:
                sound &= self._fill_tensor(self._held[self._names[stored]], tensor.begin, hasher)
            elif hasher:
                self._pass_over(tensor, hasher)
        return sound

    def _fill_tensor(self, tensor: Tensor, begin: int, hasher: "StreamHasher | None") -> bool:
        flat, sound = tensor.reshape(-1), True
        raw, width = _byte_view(flat), tensor.element_size()
        for at in range(0, len(raw), CHUNK_BYTES):
            view = raw[at : at + CHUNK_BYTES]
            self._source.read_into(begin + at, view)
            if hasher:
                hasher.add(view)
            sound &= not _describe_fault(flat[at // width : (at + len(view)) // width])
        return sound

    def _pass_over(self, tensor: StoredTensor, hasher: "StreamHasher") -> None:
        """Hash a tensor that no graph wants."""
        for at in range(tensor.begin, tensor.end, CHUNK_BYTES):
            view = memoryview(bytearray(min(CHUNK_BYTES, tensor.end - at)))
            self._source.read_into(at, view)
            hasher.add(view)


class StreamHasher:
    """SHA-256 of a stream, computed by a thread behind its reader; what is added must not change until the end."""

    def __init__(self) -> None:
        self._digest = sha256()
        self._thread = ThreadPoolExecutor(1)
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.shutdown()

    def add(self, view: memoryview) -> None:
        """Add the next bytes; waits while the thread is too far behind."""
        self._pending.append(self._thread.submit(self._digest.update, view))
        while len(self._pending) > _CHUNKS_AHEAD:
            self._pending.popleft().result()

    def finish(self) -> str:
        """Return the digest (hex) of all that was added."""
        while self._pending:
            self._pending.popleft().result()
        return self._digest.hexdigest()


def _read_slice(table: WeightTable, wanted: TensorSlice, scratch: mmap.mmap) -> Tensor:
    """Read one part of a weight into memory of its own, and check its values."""
    source, stored = table.find(wanted.name)
    shape, axis = list(stored.shape), wanted.axis
    if axis is not None:
        if axis >= len(shape) or shape[axis] % wanted.ways:
            raise BundleError(f"plan: {wanted.name} {shape} cannot be divided in {wanted.ways} along axis {axis}")
        shape[axis] //= wanted.ways
    tensor = allocate_weight(wanted.name, DTYPES[stored.dtype], shape)
    if tensor.numel():
        rows = math.prod(shape[:axis]) if axis else 1
        _read_rows(source, stored, wanted, tensor.view(-1).view(torch.uint8).view(rows, -1), scratch)
    _check_values(wanted.name, tensor)
    return tensor


def _read_rows(
    source: WeightSource, stored: StoredTensor, wanted: TensorSlice, rows: Tensor, scratch: mmap.mmap
) -> None:
    """Read a part's bytes `[rows, run]`: each row is one of `ways` runs of bytes that follow each other in the file."""
    count, run = rows.shape
    stride, skip = (run, 0) if wanted.axis is None else (run * wanted.ways, run * wanted.at)
    if count == 1 or run >= _DIRECT_RUN_BYTES or stride > CHUNK_BYTES:
        for row in range(count):
            source.read_into(stored.begin + row * stride + skip, _byte_view(rows[row]))
        return
    several = CHUNK_BYTES // stride
    buffer = torch.frombuffer(scratch, dtype=torch.uint8)
    for row in range(0, count, several):
        part = rows[row : row + several]
        taken = buffer[: len(part) * stride]
        source.read_into(stored.begin + row * stride, _byte_view(taken))
        part.copy_(taken.view(len(part), stride)[:, skip : skip + run])


def _byte_view(tensor: Tensor) -> memoryview:
    """View the memory of a contiguous tensor of one axis as bytes."""
    return tensor.view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def _check_values(name: str, tensor: Tensor) -> None:
    flat = tensor.reshape(-1)
    step = CHUNK_BYTES // tensor.element_size()
    for at in range(0, len(flat), step):
        fault = _describe_fault(flat[at : at + step])
        if fault:
            raise BundleError(f"weights: {name} holds {fault}")


def _describe_fault(values: Tensor) -> str:
    """Describe what no weight may hold among `values`, "" if there is nothing of it."""
    if not values.numel():
        return ""
    if values.is_floating_point():
        return "NaN" if bool(values.amin().isnan()) else ""  # a minimum with NaN is NaN: no mask is made
    if values.dtype is torch.bool:
        return "truth values that are neither 0 nor 1" if int(values.view(torch.uint8).amax()) > 1 else ""
    return ""


def _read_bytes(source: WeightSource, begin: int, count: int) -> bytes:
    data = bytearray(count)
    source.read_into(begin, memoryview(data))
    return bytes(data)
