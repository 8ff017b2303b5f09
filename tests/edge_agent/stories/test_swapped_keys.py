"""An attacker who runs the broker replaces our hub with another; the device accepts only ours."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from edge_agent.app.agent import DATABASE_FILE
from edge_agent.identity.identity import HubKeys, Identity
from edge_agent.storage import schema, tables
from edge_agent.storage.schema import open_connection
from tests.edge_agent.doubles.hub_double import AgentRig, HubDouble, policy, sample, until
from wire.errors import RemoteError
from wire.protocol import codec, sealing
from wire.protocol.codec import Frame
from wire.protocol.messages import Receipt, RefusalReason
from wire.protocol.topics import TopicChannel


@dataclass
class Impostor(HubDouble):
    """Has the broker, the topics, our hub's name and every message, but other keys.

    `unread`: questions it cannot open.
    """

    unread: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.genuine = self.keys
        self.signing = Ed25519PrivateKey.generate()
        self.hpke = X25519PrivateKey.generate()
        raw = (self.hpke.public_key().public_bytes_raw(), self.signing.public_key().public_bytes_raw())
        self.keys = HubKeys("hub-1", "local", *raw)

    def identity(self) -> Identity:
        """The device enrolled with the genuine hub."""
        return HubDouble().identity()

    def on_question(self, frame: Frame, data: bytes) -> None:
        assert frame.header.key_id == self.genuine.key_id
        try:
            sealing.open_sealed_frame(frame, key=self.hpke, channel=TopicChannel.QUESTION)
        except RemoteError:
            self.unread += 1
        header = codec.split_frame(data).header
        self.send_note(Receipt(header.epoch, (header.seq,)))
        self.send_note(self.make_refusal(data, RefusalReason.KEY_EXPIRED, final=False))  # "seal it again, to my key"
        self.send_note(self.make_refusal(data, RefusalReason.POLICY, final=True))


def met_its_hub(folder: Path) -> None:
    """A device that has met its hub before: it does not wait for a report of its spending."""
    opened = open_connection(folder / DATABASE_FILE)
    schema.write_marker(opened.db, folder / DATABASE_FILE)
    tables.write_value(opened.db, "clean", 1)
    opened.db.close()


async def test_another_hubs_words_and_keys_are_refused_and_the_question_waits(tmp_path: Path):
    impostor = Impostor()
    met_its_hub(tmp_path)
    async with AgentRig(tmp_path, policy(), impostor) as rig:
        record = await rig.agent.infer(sample())
        await until(lambda: impostor.unread >= 2 and rig.event_count("refused_signature") >= 6)
        status = rig.agent.status()
        assert (status["open"], status["receipted"]) == (1, 0)
        assert rig.event_count("resealed") == rig.event_count("notes") == 0
        assert [each.source for each in await rig.agent.wait(record.id, 0)] == ["local"]


async def test_when_the_genuine_hub_is_back_the_same_question_is_answered(tmp_path: Path):
    impostor = Impostor()
    met_its_hub(tmp_path)
    async with AgentRig(tmp_path, policy(), impostor) as rig:
        record = await rig.agent.infer(sample())
        await until(lambda: impostor.unread >= 1)
        genuine = HubDouble(broker=impostor.broker)
        serving = asyncio.create_task(genuine.run())
        assert len(await rig.agent.wait(record.id, 5)) == 2
        assert len(genuine.effects) == 1
        serving.cancel()
