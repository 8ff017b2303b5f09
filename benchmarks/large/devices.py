"""Benchmark of a device that gets a version whose hub part is 3 GiB: what it fetches and what it stores."""

import asyncio
from pathlib import Path

from benchmarks.harness.figures import Figure
from models.bundle.archive import pack_bundle
from models.bundle.hub_part import open_hub_part
from simulations.processes import ProcessHarness
from tests.live.doubles.fleet import policy
from tests.live.doubles.large import COLUMNS, make_large_version, poll_as_a_device

GIB = 1 << 30
ROWS = 3 * GIB // (4 * COLUMNS)
READY_S = 1200


def measure_device_bytes(folder: Path) -> list[Figure]:
    """Bytes over the size of the edge part's archive, of a new device at a running hub."""
    return asyncio.run(_measure(folder))


async def _measure(folder: Path) -> list[Figure]:
    bundle = make_large_version(folder, rows=ROWS)
    hub_bytes = open_hub_part(bundle.path, bundle.manifest).manifest.weight_bytes
    edge_bytes = len(pack_bundle(bundle))
    async with ProcessHarness(folder / "stage") as stage:
        hub = await stage.start_hub(bundle.path, {"engine": {"ready_s": READY_S}}, [policy(folder)])
        root = stage.repository.read_root()
        fetched, stored = await asyncio.to_thread(poll_as_a_device, folder / "poll", f"{hub.url}/tuf", root)
    terms = (f"edge part {edge_bytes:,} bytes, hub part {hub_bytes / GIB:.2f} GiB, sparse",)
    return [
        Figure("device: bytes fetched over the edge part", fetched / edge_bytes, "x", 1.01, terms=terms),
        Figure("device: bytes stored over the edge part", stored / edge_bytes, "x", 1.01),
    ]
