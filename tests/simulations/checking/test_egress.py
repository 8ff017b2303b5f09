"""Egress auditor: what the policy's text forbids is found in frames, whatever the product thinks of it."""

import pytest

from simulations.checking.egress import EgressAuditor, make_sample_tensor, read_policy_text
from simulations.checking.events import Flaw, QuestionAccepted, QuestionKey
from simulations.checking.history import HistoryChecker
from wire.protocol import codec
from wire.protocol.messages import CipherSuite, Escalation, FrameHeader, ModelRef, Tensor
from wire.protocol.topics import compute_shard

DEVICE = "sim--d0"
KEY = QuestionKey(DEVICE, 7, 1)
POLICY = """
schema = 2
escalation = { mode = "wait" }
locality = { hubs = ["eu-1", "us-1"], regions = ["eu", "us"] }
budget = { bytes_per_day = 1000, max_open = 2 }
[egress]
field = [{ name = "features", level = "P2" }]
data_class = { open = true, alarm = true, private = false }
[[rule]]
name = "alarms-stay"
when = { data_class = ["alarm"] }
deny = true
[[rule]]
name = "at-night"
when = { time = { from = "22:00", to = "06:00" } }
deny = true
[[rule]]
name = "eu-only"
regions = ["eu"]
"""


def frame(data_class: str = "open", field: str = "features", region: str = "eu", device: str = DEVICE) -> bytes:
    fields: dict[str, Tensor] = {field: make_sample_tensor(data_class, 3)}
    question = Escalation("id", ModelRef("m", 1, "c", "p"), "hash", region, fields, 2.0, audit=False, trace="")
    clear = codec.encode_clear_part(
        CipherSuite.SEALED, FrameHeader(compute_shard(device), device, KEY.epoch, KEY.seq, 0, b"")
    )
    return clear + codec.pad_plaintext(codec.encode_wire_message(question)) + bytes(codec.SIGNATURE_BYTES)


def border(policy: str = POLICY) -> tuple[HistoryChecker, EgressAuditor]:
    judge = HistoryChecker()
    judge.on_event(QuestionAccepted(KEY, "id"))
    return judge, EgressAuditor(judge, policy)


def flaws(judge: HistoryChecker) -> set[str]:
    return set(judge.make_report(now_s=0.0).flaws)


def test_what_the_policy_lets_out_passes() -> None:
    judge, customs = border()
    customs.inspect_frame(DEVICE, "eu-1", "eu", frame())
    assert (flaws(judge), customs.looked) == (set(), 1)


@pytest.mark.parametrize(
    ("bad", "to"),
    [
        (frame("private"), ("eu-1", "eu")),
        (frame("never heard of"), ("eu-1", "eu")),
        (frame("alarm"), ("eu-1", "eu")),
        (frame(field="raw"), ("eu-1", "eu")),
        (frame(region="us"), ("us-1", "us")),
        (frame(), ("ap-1", "eu")),
        (frame(), ("us-1", "us")),
        (frame(region="us"), ("eu-1", "eu")),
        (frame(device="sim--d1"), ("eu-1", "eu")),
        (b"garbage", ("eu-1", "eu")),
    ],
)
def test_what_the_policy_forbids_is_found_in_what_left(bad: bytes, to: tuple[str, str]) -> None:
    judge, customs = border()
    customs.inspect_frame(DEVICE, *to, bad)
    assert Flaw.FORBIDDEN.value in flaws(judge)


def test_a_lying_label_does_not_help_the_content_tells() -> None:
    judge, customs = border()
    honest = frame("private")
    assert b"private" not in honest
    customs.inspect_frame(DEVICE, "eu-1", "eu", honest)
    assert flaws(judge) == {Flaw.FORBIDDEN.value}


def test_another_text_holds_from_when_it_comes_and_only_for_whom_it_comes() -> None:
    judge, customs = border()
    customs.set_policy(POLICY.replace('mode = "wait"', 'mode = "local_only"'), 10.0, ["sim--d9"])
    customs.inspect_frame(DEVICE, "eu-1", "eu", frame())
    assert flaws(judge) == set()
    customs.set_policy(POLICY.replace('mode = "wait"', 'mode = "local_only"'), 10.0)
    customs.inspect_frame(DEVICE, "eu-1", "eu", frame())
    assert flaws(judge) == {Flaw.FORBIDDEN.value}


def test_a_question_that_leaves_before_it_is_on_record_is_found() -> None:
    judge = HistoryChecker()
    EgressAuditor(judge, POLICY).inspect_frame(DEVICE, "eu-1", "eu", frame())
    assert flaws(judge) == {Flaw.UNRECORDED.value}


def test_a_rule_that_asks_for_more_than_the_data_class_is_left_to_the_product() -> None:
    assert not read_policy_text(POLICY).narrowed["open"].silent


def test_limits_are_read_from_the_text_itself() -> None:
    judge, _ = border()
    for seq in (2, 3):
        judge.on_event(QuestionAccepted(QuestionKey(DEVICE, 7, seq), f"id{seq}", 10.0 * seq, 600, 1))
    assert flaws(judge) == {Flaw.CROWDED.value, Flaw.OVERSPENT.value}
