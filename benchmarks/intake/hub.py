"""Child process: the hub's real intake (link, checks, opening, store, receipts) before a model that never answers.

With a model that answers, sealing and storing verdicts would be part of the figure. `echo` as last word lets it answer.
"""

import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.questions import CARD
from benchmarks.harness.rig import hub_context
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.engine.base import EchoEngine, Engine, EngineError
from cloud_hub.engine.types import WorkItem
from cloud_hub.registry.registry import Registry
from cloud_hub.runtime.hub import Hub
from cloud_hub.security import hub_keys
from cloud_hub.system.settings import HubSettings
from cloud_hub.system.state_folder import StateDir
from wire.protocol.messages import Prediction
from wire.transport.mqtt import MqttTransport

PLENTY = 1_000_000


class ParkedEngine(EchoEngine):
    """Answers its warm-up, then keeps the first batch for ever."""

    def __init__(self) -> None:
        super().__init__(CARD)
        self._over = threading.Event()

    def infer(self, batch: Sequence[WorkItem]) -> list[Prediction]:
        if any(work.codes for work in batch):
            self._over.wait()
            raise EngineError("the benchmark is over")
        time.sleep(0.002)  # too slow to be run between two messages: it gets a thread of its own
        return super().infer(batch)

    def stop(self) -> None:
        self._over.set()


def _stop_hub(engine: Engine, hub: Hub) -> None:
    engine.stop()
    hub.stop()


async def serve_hub(root: Path, port: int, files: tuple[str, str, str], engine: Engine) -> None:
    state = StateDir(root)
    settings = HubSettings(
        database_url=f"sqlite:///{root / 'intake.db'}",
        max_queued=PLENTY,
        device_open=PLENTY,
        device_rate_per_s=PLENTY,
        device_burst=PLENTY,
        drain_s=0.0,
    )

    async def connect() -> MqttTransport:
        return await MqttTransport.connect("127.0.0.1", port, "hub", hub_context(*files), session_expiry_s=60)

    registry = Registry.open(DatabaseUrls(state.root).registry)
    signing = hub_keys.load_or_create_keys(state.keys)
    hub = Hub(settings=settings, keys=signing, registry=registry, engines=[engine], connect=connect)
    running = asyncio.create_task(hub.run())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, _stop_hub, engine, hub)
    while not hub.status()["link_up"]:
        await asyncio.sleep(0.05)
    print("ready", flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    _, root, port, ca, certificate, key, kind = sys.argv
    model: Engine = EchoEngine(CARD) if kind == "echo" else ParkedEngine()
    asyncio.run(serve_hub(Path(root), int(port), (ca, certificate, key), model))
