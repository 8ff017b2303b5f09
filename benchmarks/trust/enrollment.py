"""Benchmark: 200 devices enrol at once, and again with the hub killed in the middle.

Rule: the real hub process over TLS with its broker, and the product's own enrolment on the device's side; what counts
as enrolled is what the hub, the device's folder and the broker agree on.
"""

import asyncio
import contextlib
import socket
import ssl
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.harness.figures import Figure, find_median, find_percentile, format_line
from cloud_hub.system.client import call_hub_api
from edge_agent.identity.enrollment import enrol_device
from edge_agent.identity.identity import folder_is_enrolled, load_identity
from tests.live.hub.test_process import HubProcess
from wire.process.exit_codes import ExitError
from wire.protocol.topics import TopicChannel, build_topic
from wire.transport.base import DeliveryOutcome, LinkLostError
from wire.transport.mqtt import MqttTransport

DEVICES = 200
KILLED_AFTER = 60  # devices
LIMIT_S = 60.0


class InvitedFleet:
    """Invited devices, each with a folder for its identity."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.hub = HubProcess(self.folder, "tls = true")
        self.port = urlsplit(self.hub.address().url).port or 0
        config = self.folder / "hub.toml"  # should it be started again, then on the address its invites carry
        config.write_text(config.read_text().replace("port = 0", f"port = {self.port}"))
        self.ids = [f"demo--{name}-{number}" for number in range(DEVICES)]
        self.invites = {device: self.hub.invite(device) for device in self.ids}
        self.seconds: list[float] = []
        self.refused = 0

    def enrol(self, device: str) -> None:
        began = time.perf_counter()
        try:
            enrol_device(self.invites[device], self.folder / device)
        except ExitError:
            self.refused += 1  # it types the same invite again
            return
        self.seconds.append(time.perf_counter() - began)

    def all_at_once(self) -> float:
        """Seconds until the last one is done."""
        began = time.perf_counter()
        with ThreadPoolExecutor(DEVICES) as pool:
            list(pool.map(self.enrol, self.not_enrolled()))
        return time.perf_counter() - began

    def not_enrolled(self) -> list[str]:
        return [device for device in self.ids if not folder_is_enrolled(self.folder / device)]

    async def count_half_enrolled(self) -> int:
        """Devices on which hub, folder and broker do not agree."""
        rows = call_hub_api(self.hub.address(), "GET", "/v1/admin/devices")["devices"]
        known = {row["device"]: row["certificate_ends_ms"] for row in rows}
        gate = asyncio.Semaphore(20)

        async def whole(device: str) -> bool:
            there = folder_is_enrolled(self.folder / device)
            if not there or device not in known:
                return not there and device not in known
            async with gate:
                return known[device] == load_identity(self.folder / device).certificate_ms[1] and await self._is_heard(
                    device
                )

        return (await asyncio.gather(*(whole(device) for device in self.ids))).count(False)

    async def _is_heard(self, device: str) -> bool:
        identity = load_identity(self.folder / device)
        where = (identity.broker_host, identity.broker_port, device)
        with contextlib.suppress(LinkLostError, ssl.SSLError):
            link = await MqttTransport.connect(*where, identity.tls_context())
            taken = await link.post(build_topic(device, TopicChannel.STATE), b"here")
            await link.close()
            return taken is DeliveryOutcome.TAKEN
        return False

    def _opened(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def killed_in_the_middle(self) -> float:
        """Enrol, kill -9 the hub after some, start it again on its ports, and let the rest type their invites again."""
        began = time.perf_counter()
        with ThreadPoolExecutor(DEVICES) as pool:
            waiting = [pool.submit(self.enrol, device) for device in self.ids]
            while len(self.seconds) < KILLED_AFTER and not all(each.done() for each in waiting):
                time.sleep(0.005)
            self.hub.process.kill()
            self.hub.process.wait()
        self.hub.process = self.hub.start()
        self.hub.until(self._opened)
        self.all_at_once()
        return time.perf_counter() - began


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    """The figures; no bundle of the demo is needed."""
    calm = await asyncio.to_thread(InvitedFleet, folder, "calm")
    seconds = await asyncio.to_thread(calm.all_at_once)
    terms = (
        f"one device: p50 {find_median(calm.seconds):.1f} s, p99 {find_percentile(calm.seconds, 0.99):.1f} s",
        f"{len(calm.seconds)} enrolled, {calm.refused} refused; keys of the devices drawn on the same cores",
    )
    figures = [
        Figure(f"enrolment of {DEVICES} devices at once", seconds, "s", LIMIT_S, terms=terms),
        Figure("half-enrolled afterwards", len(calm.not_enrolled()) + await calm.count_half_enrolled(), "devices", 0),
    ]
    calm.hub.close()
    rough = await asyncio.to_thread(InvitedFleet, folder, "rough")
    taken = await asyncio.to_thread(rough.killed_in_the_middle)
    told = (f"{rough.refused} lost their reply or their hub and typed the invite again; {taken:.1f} s in all",)
    half = len(rough.not_enrolled()) + await rough.count_half_enrolled()
    rough.hub.close()
    return [*figures, Figure("half-enrolled with the hub killed in the middle", half, "devices", 0, terms=told)]


def main() -> int:
    """Run alone: 1 if a limit was not held."""
    with tempfile.TemporaryDirectory(prefix="skerry-bench-") as folder:
        found = asyncio.run(run_benchmark(Path(folder), Path()))
    for figure in found:
        print(format_line(figure), *(f"    {term}" for term in figure.terms), sep="\n")
    return 0 if all(figure.held for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
