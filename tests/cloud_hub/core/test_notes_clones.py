"""Clone detection: two machines with one device's keys are found.

Restarts, lost databases and re-enrolments are not.
"""

import itertools
import secrets
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.core.commands import SendNote, SuspendDevice
from cloud_hub.core.core import HubCore
from cloud_hub.core.notes import MAX_PAST, CloneFinding, DeviceHistory, HelloSighting, detect_clone
from cloud_hub.security.envelopes import HubEnvelopes
from cloud_hub.system.settings import HubSettings
from tests.cloud_hub.doubles.devices import CARD, HUB, NOW_S, MemoryRegistry, SimDevice
from wire.protocol.codec import encode_wire_message
from wire.protocol.messages import HelloNote
from wire.protocol.sealing import compute_key_id, sign_frame
from wire.protocol.topics import TopicChannel, compute_shard

KEY = b"k" * 8


@dataclass
class Machine:
    """Simulated machine that says Hello: a boot id per process, an epoch per database, increasing times."""

    key: bytes = KEY
    boot: str = field(default_factory=lambda: secrets.token_hex(8))
    epoch: int = field(default_factory=lambda: secrets.randbits(63))

    def restart(self) -> None:
        self.boot = secrets.token_hex(8)

    def lose_database(self) -> None:
        self.restart()
        self.epoch = secrets.randbits(63)

    def hello(self, at_ms: int) -> HelloSighting:
        return HelloSighting(self.boot, self.epoch, self.key, at_ms)

    def copy(self) -> "Machine":
        """The disk of this machine in another one, where a process of its own starts."""
        return Machine(self.key, epoch=self.epoch)


def findings(*sightings: HelloSighting) -> list[CloneFinding]:
    past: DeviceHistory | None = None
    found = []
    for each in sightings:
        past, finding = detect_clone(past, each)
        found.append(finding)
    return found


def test_one_machine_that_connects_again_and_again_is_the_same():
    one = Machine()
    assert findings(*(one.hello(n) for n in range(4))) == [
        CloneFinding.FIRST,
        CloneFinding.SAME,
        CloneFinding.SAME,
        CloneFinding.SAME,
    ]


def test_a_restart_and_a_lost_database_are_no_clone():
    one, said = Machine(), []
    for n, step in enumerate((lambda: None, one.restart, one.restart, one.lose_database, one.restart)):
        step()
        said.append(one.hello(n))
    assert findings(*said) == [CloneFinding.FIRST, *[CloneFinding.RESTARTED] * 4]


def test_a_new_database_under_a_running_process_is_no_clone():
    one = Machine()
    first = one.hello(1)
    one.epoch += 1
    assert findings(first, one.hello(2), first, one.hello(3))[1:] == [
        CloneFinding.RESTARTED,
        CloneFinding.REPEATED,
        CloneFinding.SAME,
    ]


def test_two_machines_that_take_turns_are_found_when_the_first_speaks_again():
    one = Machine()
    two = one.copy()
    said = (one.hello(1), two.hello(2), one.hello(3))
    assert findings(*said) == [CloneFinding.FIRST, CloneFinding.RESTARTED, CloneFinding.CLONE]


def test_a_clone_with_an_empty_database_is_found_by_boot_or_epoch():
    one = Machine()
    two = Machine()
    assert findings(one.hello(1), two.hello(2), one.hello(3))[-1] is CloneFinding.CLONE
    first, second = one.hello(1), two.hello(2)
    one.restart()  # even if the first machine was restarted meanwhile: its database is over
    assert findings(first, second, one.hello(3))[-1] is CloneFinding.CLONE


def test_a_clone_whose_clock_is_wrong_is_found_all_the_same():
    for skew_ms in (-(10**12), 10**12):
        one = Machine()
        two = one.copy()
        assert findings(one.hello(10), two.hello(20 + skew_ms), one.hello(30))[-1] is CloneFinding.CLONE


def test_an_old_hello_handed_out_again_by_the_broker_accuses_nobody():
    one = Machine()
    old = one.hello(1)
    one.restart()
    assert findings(old, one.hello(2), old, one.hello(3), old)[2:] == [
        CloneFinding.REPEATED,
        CloneFinding.SAME,
        CloneFinding.REPEATED,
    ]


def test_enrolling_anew_begins_a_new_history():
    one = Machine()
    two = one.copy()
    anew = Machine(key=b"n" * 8, boot=one.boot, epoch=one.epoch)
    assert findings(one.hello(1), two.hello(2), anew.hello(3))[-1] is CloneFinding.FIRST


STEPS = st.lists(st.sampled_from(("again", "restart", "lose", "enrol", "repeat")), max_size=60)


@given(STEPS, st.data())
def test_whatever_one_machine_does_and_the_broker_repeats_it_is_never_suspected(steps, data):
    one, said = Machine(), [Machine().hello(0)]
    said = [one.hello(0)]
    for at_ms, step in enumerate(steps, 1):
        if step == "repeat":
            mine = [each for each in said if each.key == one.key]
            said.append(data.draw(st.sampled_from(mine or said[-1:])))
            continue
        if step == "restart":
            one.restart()
        elif step == "lose":
            one.lose_database()
        elif step == "enrol":
            one = Machine(key=secrets.token_bytes(8))
        said.append(one.hello(at_ms))
    assert CloneFinding.CLONE not in findings(*said)


@given(st.lists(st.booleans(), min_size=3, max_size=40), st.booleans())
def test_two_machines_are_found_as_soon_as_one_returns(turns, fresh):
    one = Machine()
    two = Machine() if fresh else one.copy()
    said = [(one if turn else two).hello(at_ms) for at_ms, turn in enumerate(turns)]
    changes = sum(a != b for a, b in pairwise(turns))
    assert (CloneFinding.CLONE in findings(*said)) == (changes >= 2)


@given(st.lists(st.booleans(), max_size=300))
def test_the_history_stays_small(losses):
    one, past = Machine(), None
    for at_ms, loss in enumerate(losses):
        (one.lose_database if loss else one.restart)()
        past, _ = detect_clone(past, one.hello(at_ms))
        assert len(past.boots) <= MAX_PAST
        assert len(past.epochs) <= MAX_PAST


# In the hub


def hello(device: SimDevice, boot: str, created_s: float) -> bytes:
    header = device.header(0, created_s, key=compute_key_id(device.signing.public_key().public_bytes_raw()))
    note = HelloNote(device.epoch, boot, "agent/1", ())
    return sign_frame(header, encode_wire_message(note), by=device.signing, channel=TopicChannel.ASK)


def test_a_clone_is_found_by_the_next_hub_although_nobody_tells_it_what_the_last_one_heard():
    device = SimDevice()
    registry = MemoryRegistry([device.enrolled()])
    hubs = [HubCore(HubSettings(), [CARD], registry, HubEnvelopes(HUB)) for _ in range(2)]
    for hub in hubs:
        hub.served.serve_by_lease()
    shard = frozenset({compute_shard(device.id)})
    clock = itertools.count(1)

    def hear(hub: HubCore, boot: str) -> type:
        at_s = NOW_S + next(clock)
        return type(hub.on_message(device.ask_topic, hello(device, boot, at_s), at_s)[0])

    hubs[0].on_gained(shard, (), NOW_S)
    assert [hear(hubs[0], boot) for boot in ("one", "two")] == [SendNote, SendNote]
    hubs[0].on_lost(shard, NOW_S)
    hubs[1].on_gained(shard, (), NOW_S)
    # all devices of a shard are heard by one hub, so it meets both machines itself: as after its own restart
    assert [hear(hubs[1], boot) for boot in ("one", "two", "one")] == [SendNote, SendNote, SuspendDevice]
    # and what a hub heard before it lost the shard is forgotten: its device was restarted meanwhile, at the other one
    hubs[0].on_gained(shard, (), NOW_S)
    assert [hear(hubs[0], boot) for boot in ("three", "three")] == [SendNote, SendNote]


def test_a_suspect_is_suspended_and_not_welcomed():
    device = SimDevice()
    registry = MemoryRegistry([device.enrolled()])
    core = HubCore(HubSettings(), [CARD], registry, HubEnvelopes(HUB))
    said = [
        core.on_message(device.ask_topic, hello(device, boot, NOW_S + n), NOW_S + n)
        for n, boot in enumerate(("one", "two", "one"))
    ]
    assert [type(commands[0]) for commands in said] == [SendNote, SendNote, SuspendDevice]
    assert core.counts["clone_suspects"] == 1
    assert registry.suspect(device.id, 0)
    assert core.on_message(device.ask_topic, hello(device, "two", NOW_S + 9), NOW_S + 9) == []
