"""The device's spans of a trace are made from its answers, and hang together with what the hub writes."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from edge_agent.api.service import choose_traceparent
from edge_agent.app.status import CORRECTION, INFER, AnswerTracer, read_spans, spans_of_records
from edge_agent.question.records import AnswerKind, AnswerRecord, AnswerSource, Timings
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import AgentRig, policy, sample, until
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.tracing import DEVICE_SPAN, Span, derive_span_id
from wire.protocol.messages import Prediction

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"
ANSWER = AnswerRecord(
    "a" * 32, AnswerKind.ANSWER, AnswerSource.LOCAL, DecisionReason.LINK_DOWN,
    Prediction(1, 0.6, (0.4, 0.6), "digits@1"), "", "open", "1-1", SAMPLED, Timings(0.002, 0.005), 10_000,
)  # fmt: skip


def test_a_trace_that_the_device_draws_has_its_root_there():
    device, infer = spans_of_records([replace(ANSWER, trace=choose_traceparent({}, TRACE))])
    assert (device.trace, device.parent) == (TRACE, "")
    assert infer.parent == device.id == derive_span_id(TRACE, DEVICE_SPAN, ANSWER.id)


def test_only_questions_that_left_are_traced_and_nothing_of_a_sample_is_in_their_spans():
    spans: list[Span] = []
    tracer = AnswerTracer(spans.extend, dict)
    tracer.on_record(replace(ANSWER, seq=""))
    assert spans == []
    late = replace(ANSWER, kind=AnswerKind.CORRECTION, source=AnswerSource.HUB, timings=Timings(), at_ms=17_000)
    for record in (ANSWER, late):
        tracer.on_record(record)
    assert [span.name for span in spans] == [DEVICE_SPAN, INFER, CORRECTION]
    assert (spans[-1].start_s, spans[-1].end_s) == (10.0, 17.0)
    assert [span.attributes for span in spans] == [{"skerry.model": "digits@1"}, {}, {}]


def test_an_answer_is_a_span_below_its_callers_with_the_inference_inside_it():
    device, infer = spans_of_records([ANSWER])
    assert (device.trace, device.parent, device.name) == (TRACE, CALLER, DEVICE_SPAN)
    assert (infer.parent, infer.name) == (device.id, INFER)
    assert (device.start_s, device.end_s) == pytest.approx((9.995, 10.0))
    assert (infer.start_s, infer.end_s) == pytest.approx((9.995, 9.997))
    assert device.attributes["skerry.model"] == "digits@1"


def test_the_hub_names_the_same_span_without_a_word_between_them():
    assert next(spans_of_records([ANSWER])).id == derive_span_id(TRACE, DEVICE_SPAN, ANSWER.id)


def test_a_correction_lasts_from_the_answer_to_its_own_coming():
    late = replace(ANSWER, kind=AnswerKind.CORRECTION, source=AnswerSource.HUB, timings=Timings(), at_ms=17_000)
    correction = [*spans_of_records([ANSWER, late])][-1]
    assert (correction.name, correction.parent) == (CORRECTION, derive_span_id(TRACE, DEVICE_SPAN, ANSWER.id))
    assert (correction.start_s, correction.end_s) == (10.0, 17.0)


def test_what_its_owner_does_not_want_recorded_makes_no_span():
    assert [*spans_of_records([replace(ANSWER, trace=UNSAMPLED)])] == []


async def test_a_stored_answer_is_found_by_its_trace_alone(tmp_path: Path):
    async with AgentRig(tmp_path, policy(mode="hub_first")) as rig:
        await rig.agent.infer(sample(trace=SAMPLED))
        await until(lambda: rig.open == 0)
    found = read_spans(tmp_path / "agent.db", TRACE)
    assert [span.name for span in found] == [DEVICE_SPAN, INFER]
    with pytest.raises(ExitError) as stop:
        read_spans(tmp_path / "agent.db", "f" * 32)
    assert stop.value.code is ExitCode.NOT_FOUND


def test_a_file_that_is_no_record_is_said_in_one_line(tmp_path: Path):
    (tmp_path / "agent.db").write_bytes(b"no database" * 100)
    with pytest.raises(ExitError) as stop:
        read_spans(tmp_path / "agent.db", TRACE)
    assert stop.value.code is ExitCode.DATABASE
