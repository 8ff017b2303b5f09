"""A certificate renewer whose clock and random draws a test controls."""

import asyncio
import io

from edge_agent.identity.identity import Identity
from edge_agent.identity.renewal import Renewer
from edge_agent.identity.renewal_worker import renew_certificate
from edge_agent.system.clock import HubClock
from tests.edge_agent.doubles.hub_double import ManualClock
from wire.process.logging import JsonLog


async def renew_in_thread(identity: Identity) -> Identity:
    return await asyncio.to_thread(renew_certificate, identity)


class RenewerRig:
    """A renewer with a manual clock and fixed random draws."""

    def __init__(self, identity: Identity, dice: float = 0.5) -> None:
        self.time = ManualClock()
        self.clock = HubClock(identity.hub_time_ms, lambda: self.time.mono_s, lambda: self.time.wall)
        self.renewer = Renewer(identity, self.clock, JsonLog(io.StringIO()), lambda: dice, renew_in_thread)
        self.reconnects = 0

    async def reconnect(self) -> None:
        self.reconnects += 1

    async def run(self, seconds: float = 0.3) -> None:
        task = asyncio.create_task(self.renewer.run(self.reconnect, look_every_s=0.02))
        await asyncio.sleep(seconds)
        task.cancel()
