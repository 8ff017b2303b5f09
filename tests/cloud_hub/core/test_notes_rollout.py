"""Install reports of devices (sealed, signed, plausible), and the notes that a device receives after its Hello."""

from math import inf, nan

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.core.commands import RecordInstallReport, ResendAssignments, SendNote
from cloud_hub.core.notes import is_plausible_report
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice
from wire.protocol.codec import encode_wire_message, pad_plaintext
from wire.protocol.messages import WelcomeNote
from wire.protocol.rollout import AuditAgreement, AuditQuality, ClassSignals, DeviceSignals, InstallReport, InstallState
from wire.protocol.sealing import compute_key_id, seal_frame, sign_frame
from wire.protocol.topics import TopicChannel, build_topic

CELL = AuditAgreement("open", 0.05, 100, 90, 4, 2, 10, 3, 2, 1)
SIGNALS = DeviceSignals(500, 1, 30, 400.0, 350.0, 900, 1 << 26, 0, 1, (ClassSignals("open", 480, 30, 380.0, 340.0),))
REPORT = InstallReport(
    77,
    9,
    5,
    "r1",
    "digits",
    InstallState.PROBATION,
    None,
    2,
    "2" * 64,
    1,
    quality=AuditQuality((CELL,)),
    signals=SIGNALS,
)


@pytest.fixture
def device():
    return SimDevice()


@pytest.fixture
def bench(device):
    return Bench(device)


def sealed(device, report=REPORT, channel=TopicChannel.REPORT):
    to = X25519PublicKey.from_public_bytes(device.hub.hpke_public)
    return seal_frame(
        device.header(0), pad_plaintext(encode_wire_message(report)), to=to, by=device.signing, channel=channel
    )


def said(bench, device, frame):
    return bench.core.on_message(build_topic(device.id, TopicChannel.REPORT), frame, bench.now)


def test_a_sealed_report_is_handed_on(device, bench):
    assert said(bench, device, sealed(device)) == [RecordInstallReport(device.id, REPORT)]


def test_a_report_that_is_readable_on_the_way_is_refused(device, bench):
    header = device.header(0, key=compute_key_id(device.signing.public_key().public_bytes_raw()))
    assert (
        said(
            bench,
            device,
            sign_frame(header, encode_wire_message(REPORT), by=device.signing, channel=TopicChannel.REPORT),
        )
        == []
    )
    assert bench.core.counts["dropped.malformed"] == 1


def test_a_report_sealed_for_another_channel_or_by_another_device_is_refused(device, bench):
    assert said(bench, device, sealed(device, channel=TopicChannel.QUESTION)) == []
    stranger = SimDevice()
    assert said(bench, device, sealed(stranger)) == []
    assert bench.core.counts["dropped.signature"] == 2


def test_a_note_of_another_kind_in_a_sealed_envelope_is_refused(device, bench):
    to = X25519PublicKey.from_public_bytes(device.hub.hpke_public)
    hello = pad_plaintext(device.hello())
    frame = seal_frame(device.header(0), hello, to=to, by=device.signing, channel=TopicChannel.REPORT)
    assert said(bench, device, frame) == []


def test_whoever_says_hello_is_greeted(device, bench):
    welcome, greeted = bench.core.on_message(device.ask_topic, device.hello(), bench.now)
    assert isinstance(welcome, SendNote)
    assert isinstance(welcome.note, WelcomeNote)
    assert greeted == ResendAssignments(device.id)


def cell(**changes):
    return {"quality": AuditQuality((msgspec.structs.replace(CELL, **changes),))}


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
    "a cell twice": {"quality": AuditQuality((CELL, CELL))},
    "cells without end": {"quality": AuditQuality((CELL,) * 100)},
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
    assert not is_plausible_report(report)
    assert said(bench, device, sealed(device, report)) == []
    assert bench.core.counts["dropped.malformed"] == 1


@given(st.builds(AuditAgreement, st.text(max_size=5), st.floats(), *[st.integers()] * 8), st.builds(DeviceSignals))
def test_any_cell_is_judged_and_none_breaks_the_judge(cell, signals):
    found = is_plausible_report(msgspec.structs.replace(REPORT, quality=AuditQuality((cell,)), signals=signals))
    assert not found or (0 < cell.share <= 1 and 0 <= cell.worse <= cell.audited - cell.agreed)
