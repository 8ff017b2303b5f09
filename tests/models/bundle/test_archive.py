"""Random packed bundles: unpacked and opened, or refused with one error type; nothing is left outside the folder."""

import io
import shutil
import tarfile
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from models.bundle.archive import BLOCK_BYTES, pack_bundle, unpack_bundle
from models.bundle.bundle import open_bundle
from models.bundle.manifest import MANIFEST_FILE, BundleError, decode_manifest
from tests.random_inputs import COUNTS, random_inputs, try_parser

WORDS = [
    MANIFEST_FILE.encode(), b"../x", b"/etc/passwd", b".", b"..", b"00000000000", b"77777777777", b"ustar\x0000", b"-1",
    bytes(BLOCK_BYTES), b"a" * 100, b"\x80\x00\x00\x00",
]  # fmt: skip
MANIFEST_WORDS = [
    b'"format"', b'"model"', b'"input"', b'"shape"', b'"dtype"', b'"files"', b'"labels"', b'"kind"', b'"hub"', b"null",
    b'"features"', b'"level"', b'"low"', b'"high"', b"[]", b"{}", b"true", b'""', b'"FP32"', b'"P4"', b'"edge.onnx"',
]  # fmt: skip


def reseal(data: bytes) -> bytes:
    """The archive with the checksum of each header, where there is one, made good: what is behind it is tried too."""
    sealed = bytearray(data)
    for at in range(0, len(sealed) - BLOCK_BYTES + 1, BLOCK_BYTES):
        if sealed[at + 257 : at + 262] == b"ustar":
            unsigned, _ = tarfile.calc_chksums(bytes(sealed[at : at + BLOCK_BYTES]))  # type: ignore[attr-defined]
            sealed[at + 148 : at + 155] = b"%06o\0" % unsigned
    return bytes(sealed)


@pytest.mark.parametrize("count", COUNTS)
def test_random_packed_bundles_are_unpacked_and_opened_or_refused_with_one_error_type(made, tmp_path: Path, count):
    packed = pack_bundle(made)
    dice = Random(0)
    area = tmp_path / "area"

    def unpack(data: bytes) -> None:
        shutil.rmtree(area, ignore_errors=True)
        (area / "slot").mkdir(parents=True)
        sealed = data if dice.random() < 0.3 else reseal(data)
        try:
            digest = unpack_bundle(io.BytesIO(sealed), area / "slot")
            assert digest == sha256(sealed).hexdigest()
            open_bundle(area / "slot")
        finally:
            assert [found.name for found in area.iterdir()] == ["slot"]
            assert all(found.is_file() and not found.is_symlink() for found in (area / "slot").iterdir())

    try_parser(unpack, BundleError, random_inputs(count, [packed, packed[: 8 * BLOCK_BYTES]], WORDS))


@pytest.mark.parametrize("count", COUNTS)
def test_random_manifests_are_read_or_refused_with_one_error_type(made, count):
    sound = [(made.path / MANIFEST_FILE).read_bytes()]
    assert try_parser(decode_manifest, BundleError, random_inputs(count, sound, MANIFEST_WORDS))
