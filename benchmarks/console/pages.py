"""The console of a real hub with 10,000 devices, in Chromium: first paint, processor time, requests, barriers.

`python -m benchmarks console --only pages`. Three agents answer all the while, so that the fleet moves; the other
devices are rows of the registry. First paint is the browser's own figure (first contentful paint of the Paint Timing
API), in a new profile each time; the processor time is the hub's, with ten open pages of the fleet and without.
"""

import asyncio
import os
import secrets
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.harness.figures import Figure
from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import REGISTRY
from cloud_hub.database.statements import write_rows
from cloud_hub.database.tables import devices as devices_table
from models.bundle.bundle import open_bundle
from simulations.demo.acts import POLICY
from simulations.demo.client import DemoClient, Digit, load_digits
from simulations.demo.results import AnswerTally
from simulations.processes import ProcessHarness
from tests.live.doubles.chromium import Chromium, Visitor, find_chromium, open_chromium, session_code
from wire.process.exit_codes import ExitCode, ExitError

DEVICES = 10_000
SITES = ("eu-de", "eu-fr", "us-east", "us-west", "ap-south", "plant-7", "plant-9", "harbour")
LOADS = 7
OPEN_PAGES = 10
WATCH_S = 40.0
EVERY_S = 0.3
PAGES = ("/", "/?page=100", "/rollouts", "/models", "/policies", "/hub", "/jobs", "/costs", "/alarms", "/activity")
_PAINT = """async () => {
  for (;;) {
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    if (paint) return paint.startTime;
    await new Promise((done) => setTimeout(done, 20));
  }
}"""
_TICKS = os.sysconf("SC_CLK_TCK")


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    """First paint, processor time, and requests that leave the browser."""
    program = find_chromium()
    if program is None:
        raise ExitError(ExitCode.NOT_FOUND, "Chromium is not installed: ./setup.sh dev installs it")
    async with _open_fleet(folder, bundle) as stage, open_chromium(program) as chromium:
        paints, strangers = await _measure_paints(stage, chromium)
        barriers = await _find_barriers(stage, chromium)
        quiet = await _watch_cpu(stage)
        visitors = [await _visit(stage, chromium) for _ in range(OPEN_PAGES)]
        await asyncio.sleep(3.0)
        watched = await _watch_cpu(stage)
        moved = sum(len(visitor.asked) for visitor in visitors)
    share = 100 * (watched - quiet)
    every = [each for found in paints.values() for each in found]
    front = statistics.median(paints["/"])
    return [
        Figure(
            "console, 10,000 devices: first paint of the fleet", front / 1000, "s", 1.0,
            terms=(
                f"worst of all {len(every)} loads of {len(PAGES)} pages {max(every):.0f} ms; medians: "
                + ", ".join(f"{path} {statistics.median(found):.0f} ms" for path, found in paints.items()),
            ),
        ),
        Figure(
            "console, 10,000 devices: the hub's processor for ten open pages", share, "% of a core", 5.0,
            terms=(
                f"{100 * watched:.2f} % with them, {100 * quiet:.2f} % without, each over {WATCH_S:g} s; the "
                f"pages asked {moved} times in all",
            ),
        ),
        Figure("console: requests that leave the browser for anything but the hub", len(strangers), "requests", 0.0),
        Figure(
            "console: violations of WCAG 2.2 AA that axe-core finds", len(barriers), "violations", 0.0,
            terms=(f"{len(PAGES) + 1} pages, light and dark",),
        ),
    ]  # fmt: skip


@asynccontextmanager
async def _open_fleet(folder: Path, bundle: Path) -> AsyncIterator[ProcessHarness]:
    """A hub with its devices; three agents are asked all the while."""
    async with ProcessHarness(folder) as stage:
        hub = await stage.configure_hub(bundle, {}, policies=[POLICY])
        await asyncio.to_thread(fill_registry, hub.folder, DEVICES)
        await stage.launch_hub()
        for name in ("cam-1", "cam-2", "kiosk-1"):
            await stage.add_agent(name, f"tuf:{open_bundle(bundle).manifest.name}", "tuf:demo")
        await asyncio.gather(*(stage.start_agent(agent) for agent in stage.agents))
        digits = await load_digits(stage, open_bundle(bundle))
        feeding = asyncio.create_task(_feed(stage, open_bundle(bundle).manifest, digits))
        try:
            yield stage
        finally:
            feeding.cancel()


def fill_registry(state: Path, count: int) -> None:
    """Write so many active devices into the registry of a hub that does not run."""
    now_ms = int(time.time() * 1000)
    signing = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    hpke = X25519PrivateKey.generate().public_key().public_bytes_raw()
    rows = [
        {
            "id": f"fleet--cam-{n:06d}", "state": "active", "signing_key": signing, "hpke_key": hpke,
            "serial": secrets.token_hex(8), "certificate_ends_ms": now_ms + 7 * 86_400_000, "enrolled_ms": now_ms,
            "changed_ms": now_ms, "why": "enrolled", "authority": "", "hardware": "", "retire_at_ms": 0, "ledger": "",
            "device_class": "camera", "region": SITES[n % len(SITES)],
        }
        for n in range(count)
    ]  # fmt: skip
    engine = open_part(state / "devices.db", REGISTRY)
    with engine.begin() as connection:
        for start in range(0, len(rows), 1000):
            write_rows(connection, devices_table, rows[start : start + 1000])
    engine.dispose()


async def _feed(stage: ProcessHarness, manifest: object, digits: list[Digit]) -> None:
    client = DemoClient(stage.session, AnswerTally(), manifest, 0.0)  # type: ignore[arg-type]
    for n in range(1_000_000):
        await client.ask(stage.agents[n % len(stage.agents)], digits[n % len(digits)])
        await asyncio.sleep(EVERY_S)


async def _visit(stage: ProcessHarness, chromium: Chromium, path: str = "/", **more: str) -> Visitor:
    """A visitor with a session of its own, on a page. `more`: options of Playwright's context."""
    assert stage.hub is not None
    visitor = await chromium.visit(stage.hub.url, **more)
    await visitor.page.goto(await session_code(stage.hub.url, stage.hub.token))
    if path != "/":
        await visitor.open(path)
    return visitor


async def _measure_paints(stage: ProcessHarness, chromium: Chromium) -> tuple[dict[str, list[float]], list[str]]:
    """First contentful paints in ms by page, and addresses that were asked for elsewhere."""
    paints: dict[str, list[float]] = {path: [] for path in PAGES}
    strangers: list[str] = []
    for _ in range(LOADS):
        for path in PAGES:
            visitor = await _visit(stage, chromium, "/signin")
            await visitor.open(path)
            paints[path].append(float(await visitor.page.evaluate(_PAINT)))
            strangers += visitor.strangers
            await visitor.context.close()
    return paints, strangers


async def _find_barriers(stage: ProcessHarness, chromium: Chromium) -> list[str]:
    """What axe-core finds on every page, in light and in dark."""
    found: list[str] = []
    for scheme in ("light", "dark"):
        visitor = await _visit(stage, chromium, color_scheme=scheme)
        for path in (*PAGES, "/devices/fleet--cam-000001"):
            await visitor.open(path)
            found += await visitor.find_barriers()
        await visitor.context.close()
    return found


async def _watch_cpu(stage: ProcessHarness) -> float:
    """Share of a core that the hub's process used."""
    assert stage.hub is not None
    before, began = _read_cpu_s(stage.hub.child.pid), time.monotonic()
    await asyncio.sleep(WATCH_S)
    return (_read_cpu_s(stage.hub.child.pid) - before) / (time.monotonic() - began)


def _read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
