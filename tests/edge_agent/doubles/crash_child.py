"""Process that asks three questions and kills itself at a named point: `python -m ... FOLDER POINT`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.edge_agent.doubles.hub_double import AgentRig, HubDouble, policy, sample, until
from wire.protocol.topics import TopicChannel
from wire.transport.base import MemoryTransport

POINTS = ("in_transaction", "before_send", "after_send", "after_receipt", "before_delete", "after_outcome")


def kill_self(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class FileHub(HubDouble):
    """A hub double whose effects are written to a file, so that they outlive the process as a real hub's do."""

    file: Path
    point = ""

    def on_question(self, frame, data) -> None:
        known = set(self.effects)
        super().on_question(frame, data)
        with self.file.open("a") as file:
            for epoch, seq in set(self.effects) - known:
                file.write(f"{epoch} {seq} {self.effects[epoch, seq].hex()}\n")
        if self.point == "after_send":
            kill_self()

    async def connect(self) -> MemoryTransport:
        transport = await super().connect()
        post = transport.post
        if self.point == "before_send":
            transport.post = lambda topic, data: (  # type: ignore[assignment,method-assign]
                kill_self() if topic.endswith(TopicChannel.QUESTION) else post(topic, data)  # type: ignore[return-value]
            )
        return transport


async def main(folder: Path, point: str) -> None:
    hub = FileHub(verdicts=point in ("before_delete", "after_outcome"))
    hub.file, hub.point = folder / "effects", point
    statements = {"in_transaction": "insert into entries", "before_delete": "delete from outbox"}
    async with AgentRig(folder, policy(), hub) as rig:
        if point in statements:
            trace = lambda sql: kill_self() if sql.startswith(statements[point]) else None  # noqa: E731
            await rig.agent._db.read(lambda db: db.set_trace_callback(trace))
        await asyncio.gather(*(rig.agent.infer(sample()) for _ in range(3)))
        if point == "after_receipt":
            await until(lambda: rig.agent.status()["receipted"] == 3)
        if point == "after_outcome":
            await until(lambda: rig.open == 0 and rig.agent._db.waiting_units == 0)
        kill_self()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
