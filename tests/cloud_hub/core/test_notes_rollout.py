"""Install reports of devices (sealed, signed, plausible), and the notes that a device receives after its Hello."""

from math import inf, nan

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.core.commands import Greeted, Reported, Tell
from cloud_hub.core.notes import is_possible
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice
from wire.protocol.codec import encode, pad
from wire.protocol.messages import Welcome
from wire.protocol.rollout import Agreement, ClassSignals, InstallReport, InstallState, Quality, Signals
from wire.protocol.sealing import key_id, seal, sign
from wire.protocol.topics import Channel, topic

CELL = Agreement("open", 0.05, 100, 90, 4, 2, 10, 3, 2, 1)
SIGNALS = Signals(500, 1, 30, 400.0, 350.0, 900, 1 << 26, 0, 1, (ClassSignals("open", 480, 30, 380.0, 340.0),))
REPORT = InstallReport(
    77, 9, 5, "r1", "digits", InstallState.PROBATION, None, 2, "2" * 64, 1, quality=Quality((CELL,)), signals=SIGNALS
)


@pytest.fixture
def device():
    return SimDevice()


@pytest.fixture
def bench(device):
    return Bench(device)


def sealed(device, report=REPORT, channel=Channel.REPORT):
    to = X25519PublicKey.from_public_bytes(device.hub.hpke_public)
    return seal(device.header(0), pad(encode(report)), to=to, by=device.signing, channel=channel)


def said(bench, device, frame):
    return bench.core.on_message(topic(device.id, Channel.REPORT), frame, bench.now)


def test_a_sealed_report_is_handed_on(device, bench):
    assert said(bench, device, sealed(device)) == [Reported(device.id, REPORT)]


def test_a_report_that_is_readable_on_the_way_is_refused(device, bench):
    header = device.header(0, key=key_id(device.signing.public_key().public_bytes_raw()))
    assert said(bench, device, sign(header, encode(REPORT), by=device.signing, channel=Channel.REPORT)) == []
    assert bench.core.counts["dropped.malformed"] == 1


def test_a_report_sealed_for_another_channel_or_by_another_device_is_refused(device, bench):
    assert said(bench, device, sealed(device, channel=Channel.QUESTION)) == []
    stranger = SimDevice()
    assert said(bench, device, sealed(stranger)) == []
    assert bench.core.counts["dropped.signature"] == 2


def test_a_note_of_another_kind_in_a_sealed_envelope_is_refused(device, bench):
    to = X25519PublicKey.from_public_bytes(device.hub.hpke_public)
    hello = pad(device.hello())
    frame = seal(device.header(0), hello, to=to, by=device.signing, channel=Channel.REPORT)
    assert said(bench, device, frame) == []


def test_whoever_says_hello_is_greeted(device, bench):
    welcome, greeted = bench.core.on_message(device.ask_topic, device.hello(), bench.now)
    assert isinstance(welcome, Tell)
    assert isinstance(welcome.note, Welcome)
    assert greeted == Greeted(device.id)


def cell(**changes):
    return {"quality": Quality((msgspec.structs.replace(CELL, **changes),))}


def signals(**changes):
    return {"signals": msgspec.structs.replace(SIGNALS, **changes)}


IMPOSSIBLE = {
    "no number": {"seq": 0},
    "a number below zero": {"counter": -1},
    "a number beyond counting": {"seq": 2**60},
    "a name without end": {"rollout": "r" * 500},
    "a share of nothing": cell(share=0.0),
    "a share that is no number": cell(share=nan),
    "more agreed than audited": cell(agreed=101),
    "worse although it agreed": cell(worse=11),
    "better and yet not agreed": cell(better=91),
    "more wrong than told": cell(told_wrong=11),
    "more better than right": cell(told_better=8),
    "a cell twice": {"quality": Quality((CELL, CELL))},
    "cells without end": {"quality": Quality((CELL,) * 100)},
    "more confident than certain": signals(confidence=501.0),
    "confidence that is no number": signals(confidence=nan),
    "confidence without end": signals(confidence=inf),
    "more escalated than answered": signals(escalated=501),
    "classes without end": signals(classes=SIGNALS.classes * 100),
    "an essay": {"detail": "x" * 1000},
}


@pytest.mark.parametrize("changes", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_report_that_cannot_be_meant_is_dropped(device, bench, changes):
    report = msgspec.structs.replace(REPORT, **changes)
    assert not is_possible(report)
    assert said(bench, device, sealed(device, report)) == []
    assert bench.core.counts["dropped.malformed"] == 1


@given(st.builds(Agreement, st.text(max_size=5), st.floats(), *[st.integers()] * 8), st.builds(Signals))
def test_any_cell_is_judged_and_none_breaks_the_judge(cell, signals):
    found = is_possible(msgspec.structs.replace(REPORT, quality=Quality((cell,)), signals=signals))
    assert not found or (0 < cell.share <= 1 and 0 <= cell.worse <= cell.audited - cell.agreed)
