"""Frozen bundles: archives, manifests and hub parts of `tests/vectors/bundles` are read and written as they are there.

Whoever signed a bundle signed its bytes: this release unpacks them, and packs the same ones again.
"""

import io
import json
import shutil
import tempfile
import types
import typing
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.archive import pack_bundle, unpack_bundle
from models.bundle.bundle import open_bundle
from models.bundle.hub_part import HubManifest, decode_hub_manifest, encode_hub_manifest, open_hub_part
from models.bundle.manifest import FORMAT, Manifest, decode_manifest, digest_edge, encode_manifest
from models.bundle.text_part import TextTemplate, decode_text_template, encode_text_template
from tests.second_implementation import artefacts, vectors

FOLDER = vectors.FOLDER / "bundles"
ARCHIVES = sorted(FOLDER.glob("*.skb"))
MANIFESTS, PARTS = sorted(FOLDER.glob("manifest-*.json")), sorted(FOLDER.glob("part-*.json"))
VERSION, HUB = FOLDER / "echo-3.skb", FOLDER / "echo-3.hub"
HUB_FILES = {path.name: path.read_bytes() for path in HUB.iterdir() if path.name != "part.json"}


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=[path.name for path in paths])


def edge_manifests() -> list[bytes]:
    return [path.read_bytes() for path in MANIFESTS] + [
        artefacts.unpack_bundle(path.read_bytes())["manifest.json"] for path in ARCHIVES
    ]


@each(ARCHIVES)
def test_a_frozen_archive_is_unpacked_and_packed_to_the_same_bytes(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    assert unpack_bundle(io.BytesIO(data), tmp_path) == sha256(data).hexdigest()
    if path == VERSION:
        shutil.copytree(HUB, tmp_path / "hub")
    bundle = open_bundle(tmp_path)
    assert pack_bundle(bundle) == data
    part = open_hub_part(tmp_path, bundle.manifest)
    assert part.manifest.name == "echo"


@each(MANIFESTS)
def test_a_frozen_manifest_is_read_and_written_to_the_same_bytes(path: Path) -> None:
    assert encode_manifest(decode_manifest(path.read_bytes())) == path.read_bytes()


@each([*PARTS, HUB / "part.json"])
def test_a_frozen_hub_part_is_read_and_written_to_the_same_bytes(path: Path) -> None:
    assert encode_hub_manifest(decode_hub_manifest(path.read_bytes())) == path.read_bytes()


def test_the_frozen_template_of_a_text_is_read_and_written_to_the_same_bytes() -> None:
    data = (FOLDER / "text.json").read_bytes()
    assert encode_text_template(decode_text_template(data)) == data


# The second implementation


@each(ARCHIVES)
def test_the_second_implementation_packs_the_same_bytes_and_knows_every_file(path: Path) -> None:
    files = artefacts.unpack_bundle(path.read_bytes())
    assert artefacts.check_bundle(files) == sha256(files["manifest.json"]).hexdigest()
    with pytest.raises(ValueError, match="canonical"):
        artefacts.unpack_bundle(path.read_bytes().replace(b"0000644", b"0000755", 1))


def test_both_bind_the_halves_of_a_version_by_the_same_digests() -> None:
    manifest = artefacts.unpack_bundle(VERSION.read_bytes())["manifest.json"]
    part = (HUB / "part.json").read_bytes()
    artefacts.check_hub_part(manifest, part, HUB_FILES)
    assert digest_edge(decode_manifest(manifest)) == json.loads(part)["edge"]
    with pytest.raises(ValueError, match="files"):
        artefacts.check_hub_part(manifest, part, {**HUB_FILES, "hub.json": b"[]"})


NAMES = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,63}", fullmatch=True)


@pytest.mark.parametrize(("part", "manifest"), [("onnx", "pictures"), ("text", "texts")])
def test_a_frozen_part_names_a_manifest_with_every_key_by_the_same_digest(part: str, manifest: str) -> None:
    data = (FOLDER / f"manifest-{manifest}.json").read_bytes()
    named = json.loads((FOLDER / f"part-{part}.json").read_bytes())["edge"]
    assert digest_edge(decode_manifest(data)) == artefacts.digest_edge(data) == named


@given(st.dictionaries(NAMES, st.binary(max_size=1100), max_size=4))
def test_an_archive_of_the_second_implementation_is_the_one_that_is_unpacked(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = artefacts.pack_bundle(files)
        assert unpack_bundle(io.BytesIO(data), Path(folder)) == sha256(data).hexdigest()
        assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == files


# A format that gains a key needs a frozen file with it


def list_missing_keys(kind: Any, values: list[Any], where: str) -> list[str]:
    """Keys of a struct, and of those within, that no value has."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _list_missing_of(kind, [value for value in values if value is not None], where)
    if origin in (typing.Union, types.UnionType):
        return [word for each in args for word in list_missing_keys(each, values, where)]
    if origin is tuple:
        return list_missing_keys(args[0], [item for value in values for item in value or ()], f"{where}[]")
    if origin is dict:
        return list_missing_keys(args[1], [item for value in values for item in (value or {}).values()], f"{where}{{}}")
    return []


def _list_missing_of(kind: type[msgspec.Struct], values: list[Any], where: str) -> list[str]:
    config, missing = kind.__struct_config__, []
    if config.tag is not None:
        values = [value for value in values if value[config.tag_field] == config.tag]
    for place, field in enumerate(msgspec.structs.fields(kind)):
        if config.array_like:
            found = [value[place] for value in values if len(value) > place]
        else:
            found = [value[field.encode_name] for value in values if field.encode_name in value]
        name = f"{where}.{field.name}"
        missing += list_missing_keys(field.type, found, name) if found else [name]
    return missing


REMOVED = ("parallel.style", "parallel.shard")  # read as their defaults alone, and not written


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        (Manifest, edge_manifests()),
        (HubManifest, [path.read_bytes() for path in (*PARTS, HUB / "part.json")]),
        (TextTemplate, [(FOLDER / "text.json").read_bytes()]),
    ],
    ids=["manifest", "hub part", "text"],
)
def test_every_key_of_a_manifest_stands_in_a_frozen_one(kind: type[msgspec.Struct], files: list[bytes]) -> None:
    missing = list_missing_keys(kind, [json.loads(data) for data in files], kind.__name__)
    missing = [name for name in missing if not name.endswith(REMOVED)]
    assert not missing, "add a file with it to tests/vectors/bundles: tests/vectors/README.md"


def test_the_format_of_this_release_is_frozen() -> None:
    formats = {json.loads(data)["format"] for data in edge_manifests()}
    assert FORMAT in formats
