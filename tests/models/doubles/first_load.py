"""First loads in this process: for tests of what becomes of a report, not of the child that makes it."""

import io

from models.bundle.bundle import Bundle
from models.bundle.manifest import EDGE_FILE, encode_manifest
from models.runtime.feature_codec import read_codec_tables
from models.verification.sandbox import LENGTH_BYTES, FirstLoadReport, SandboxInput, SandboxLimits
from models.verification.sandbox_child import MemoryGauge, _try_bundle


def load_here(bundle: Bundle, limits: SandboxLimits | None = None) -> FirstLoadReport:
    """As `run_first_load`, by the same code, without the child's confinement."""
    manifest = bundle.manifest
    tables = read_codec_tables(manifest, bundle.read_file)
    parts = SandboxInput(
        encode_manifest(manifest), bundle.read_file(EDGE_FILE), bundle.read_file(manifest.golden), tables
    )
    handed = b"".join(len(part).to_bytes(LENGTH_BYTES, "big") + part for part in parts)
    return _try_bundle(io.BytesIO(handed), limits or SandboxLimits(), MemoryGauge())
