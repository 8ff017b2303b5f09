"""Versions of the echo model, with a hub part of their own or of the older format, for publishing and fetching."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from models.bundle.bundle import Bundle, write_bundle
from models.bundle.hub_part import HubManifest
from models.bundle.manifest import (
    EDGE_FILE,
    FORMAT,
    GOLDEN_FILE,
    HUB_FILE,
    HUB_GRAPH_FILE,
    JOINT_FORMAT,
    NO_HUB,
    HubModel,
)
from models.bundle.version import write_version
from models.runtime.runner import echo_manifest
from tests.models.conftest import contents

WEIGHTS = bytes(range(256)) * 40
SHARDS = ("hub-1.safetensors", "hub-2.safetensors")
HUB_FILES = {"hub.json": b"{}", SHARDS[0]: WEIGHTS, SHARDS[1]: WEIGHTS[::-1]}
HUB_BYTES = sum(map(len, HUB_FILES.values()))


def make_version(path: Path, hub_files: Mapping[str, bytes | Path] | None = None, **changes: object) -> Bundle:
    """Write both parts of a version of the echo model at `path`; `changes` are of its manifest."""
    files = hub_files or HUB_FILES
    weights = tuple(name for name in files if name != "hub.json")
    manifest = msgspec.structs.replace(echo_manifest(), **{"format": FORMAT, "hub": NO_HUB, **changes})
    edge = {name: data for name, data in contents().items() if name in (EDGE_FILE, GOLDEN_FILE)}
    hub = HubManifest(name=manifest.name, version=manifest.version, graph="hub.json", weights=weights)
    return write_version(path, manifest, edge, hub, files)


def make_joint(path: Path, edge: bytes | None = None, **changes: object) -> Bundle:
    """Write a bundle of the older format, its hub files inside; `changes` are of its manifest."""
    manifest = msgspec.structs.replace(
        echo_manifest(), **{"format": JOINT_FORMAT, "hub": HubModel(), "hub_part": "", **changes}
    )
    files = {name: data for name, data in contents(edge).items() if name in (EDGE_FILE, GOLDEN_FILE)}
    return write_bundle(path, manifest, {**files, HUB_FILE: b"weights", HUB_GRAPH_FILE: b"{}"})
