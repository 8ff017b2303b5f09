"""A week of one device's connections in virtual time, against a broker of another implementation."""

import random

import mqtt5
import pytest

from wire.transport.base import IncomingMessage
from wire.transport.packets import SessionOptions
from wire.transport.session import MqttSession, PublishEnded, SessionEnded, SessionEvent

WEEK_S = 604_800.0
TOPIC = "v1/00/demo--a/up/q"
DOWN = "v1/00/demo--a/down/r"


class Broker:
    """Answers what a client sends. `heard_s`: when it last did; `strict`: nothing may come later than it allows."""

    def __init__(self, dice: random.Random, now: float) -> None:
        self.dice = dice
        self.heard_s = now
        self.in_flight = 0
        self.receive_max = dice.choice((1, 3, 20, 65_535))
        self.rest = b""
        self.unacked: list[int] = []

    def take(self, data: bytes, now: float) -> bytes:
        if not data:
            return b""
        assert now - self.heard_s <= 20.0 * 1.5  # else it would have hung up
        self.heard_s, self.rest, out = now, self.rest + data, []
        while self.rest:
            try:
                packet, size = mqtt5.read(memoryview(self.rest))
            except IndexError:
                break
            self.rest = self.rest[size:]
            out.append(self.answer(packet))
        return b"".join(out)

    def answer(self, packet: mqtt5.Packet) -> bytes:
        if isinstance(packet, mqtt5.ConnectPacket):
            return mqtt5.ConnAckPacket(receive_max=self.receive_max).write()
        if isinstance(packet, mqtt5.PublishPacket):
            assert packet.packet_id is not None
            self.unacked.append(packet.packet_id)
            assert len(self.unacked) <= self.receive_max
            return self.acknowledge() if self.dice.random() < 0.7 else b""
        if isinstance(packet, mqtt5.PingReqPacket):
            return mqtt5.PingRespPacket().write()
        assert isinstance(packet, mqtt5.PubAckPacket)
        return b""

    def acknowledge(self) -> bytes:
        """Acknowledge what has waited, in any order."""
        self.dice.shuffle(self.unacked)
        done, self.unacked = self.unacked, []
        return b"".join(mqtt5.PubAckPacket(packet_id).write() for packet_id in done)


class Soak:
    """The device's side; `ended` counts what became of its messages."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = self.dice.random() * 1e6
        self.until = self.now + WEEK_S
        self.waiting: set[int] = set()
        self.ended = self.lost = self.sessions = self.received = self.sent_down = 0

    def run_session(self) -> None:
        self.sessions += 1
        session = MqttSession(SessionOptions("demo--a"), self.now)
        broker = Broker(self.dice, self.now)
        life_s = self.dice.expovariate(1 / 7200.0)
        ends = self.now + life_s
        self.exchange(session, broker)
        while self.now < min(ends, self.until):
            pause_s = self.dice.choice((0.001, 0.5, 15.0, 60.0, 600.0)) * self.dice.random()
            self.wait(session, broker, min(self.now + pause_s, ends))
            self.say_something(session, broker)
        self.take(session.receive_end("cut"))
        self.lost += len(self.waiting)
        self.waiting.clear()

    def wait(self, session: MqttSession, broker: Broker, until: float) -> None:
        while session.next_tick() < until:
            self.now = max(self.now, session.next_tick())
            self.take(session.tick(self.now))
            self.exchange(session, broker)
        self.now = max(self.now, until)

    def say_something(self, session: MqttSession, broker: Broker) -> None:
        for _ in range(self.dice.choice((0, 1, 1, 5))):
            self.waiting.add(session.publish(TOPIC, self.dice.randbytes(self.dice.randint(0, 2000))))
        down = b"".join(
            mqtt5.PublishPacket(DOWN, b"verdict", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=each + 1).write()
            for each in range(self.dice.choice((0, 0, 1, 4)))
        )
        self.sent_down += down.count(b"verdict")
        self.feed(session, down + broker.acknowledge())
        self.exchange(session, broker)

    def exchange(self, session: MqttSession, broker: Broker) -> None:
        while data := session.data_to_send(self.now):
            self.feed(session, broker.take(data, self.now) or broker.acknowledge())

    def feed(self, session: MqttSession, data: bytes) -> None:
        while data:
            cut = self.dice.randint(1, len(data))
            self.take(session.receive_data(data[:cut]))
            data = data[cut:]

    def take(self, events: list[SessionEvent]) -> None:
        for event in events:
            if isinstance(event, PublishEnded):
                self.waiting.remove(event.packet_id)
                self.ended += 1
            elif isinstance(event, IncomingMessage):
                self.received += 1
            elif isinstance(event, SessionEnded):
                assert event.reason == "cut", event


@pytest.mark.further
@pytest.mark.parametrize("seed", range(3))
def test_a_week_of_connections_ends_none_by_itself_and_forgets_no_message(seed):
    soak = Soak(seed)
    while soak.now < soak.until:
        soak.run_session()
    assert soak.sessions > 50
    assert soak.ended > 3000
    assert soak.received == soak.sent_down > 3000
    assert soak.lost < soak.ended / 10
