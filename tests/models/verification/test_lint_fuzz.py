"""Fuzz tests of the ONNX lint: LintError or a summary in bounded time, and what passes reads the same in onnx."""

import random
import time

import onnx
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.verification.lint import LintError, LintReport, lint_graph
from models.verification.onnx_reader import read_onnx_model
from models.verification.protobuf import ProtobufError
from tests.examples import count_examples
from tests.models.conftest import echo_graph
from tests.models.doubles.hostile import HOSTILE
from tests.models.verification.test_onnx_operators import convolutions, recurrent
from tests.random_inputs import COUNTS, random_inputs, try_parser

LIMIT_S = 0.5  # for a few hundred bytes, on a busy machine; it takes a millisecond
MUTANTS = 4_000
QUICK = settings(
    max_examples=count_examples(300), deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
FIELDS = st.sampled_from([bytes([number << 3 | wire]) for number in range(1, 16) for wire in (0, 1, 2, 5)])
SEEDS = [echo_graph(), *(data for data, _ in HOSTILE.values() if len(data) < 2000)]


def judged(data: bytes) -> LintReport | None:
    """None if it was refused; any other exception than LintError is the test's failure."""
    begun = time.thread_time()
    try:
        found = lint_graph(data)
    except LintError:
        found = None
    assert time.thread_time() - begun < LIMIT_S
    return found


@QUICK
@given(st.binary(max_size=400))
def test_random_bytes(data):
    assert judged(data) is None


@QUICK
@given(st.lists(st.one_of(FIELDS, st.binary(max_size=6), st.just(b"\x0a\x02")), max_size=80))
def test_random_fields(parts):
    judged(b"\x08\x0a" + b"".join(parts))


def mutate(dice: random.Random, data: bytes) -> bytes:
    """A model with a few bytes flipped, replaced, doubled, cut out or put in."""
    found = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at, size = dice.randrange(len(found) or 1), dice.randint(1, 8)
        match dice.choice("frdci"):
            case "f" if found:
                found[at] ^= 1 << dice.randrange(8)
            case "r" if found:
                found[at] = dice.randrange(256)
            case "d":
                found[at:at] = found[at : at + size]
            case "c":
                del found[at : at + size]
            case _:
                found[at:at] = dice.randbytes(size)
    return bytes(found)


@pytest.mark.examples
def test_mutated_models_are_refused_or_are_what_onnx_reads():
    """A field that only one of two readers understands would let a graph pass that nobody has looked at."""
    dice = random.Random(7)
    good = [echo_graph(), convolutions().SerializeToString(), recurrent().SerializeToString()]
    passed = 0
    mutants = count_examples(MUTANTS)
    for _ in range(mutants):
        data = mutate(dice, dice.choice(good if dice.random() < 0.8 else SEEDS))
        if judged(data):
            passed += 1
            compare(data)
    assert passed > mutants // 100  # or this test has looked at nothing


@pytest.mark.parametrize("count", COUNTS)
def test_random_models_are_summed_up_or_refused_with_one_error_type(count):
    good = [echo_graph(), convolutions().SerializeToString(), recurrent().SerializeToString(), *SEEDS]
    words = [b"Conv", b"If", b"ai.onnx.ml", b"raw_data", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x12\x00"]
    assert try_parser(lint_graph, LintError, random_inputs(count, good, words))


def compare(data: bytes) -> None:
    theirs = onnx.load_from_string(data)  # it raises for what protobuf cannot read
    ours = read_onnx_model(data)
    assert not unknown(theirs)
    assert ours.graph is not None
    assert ours.ir_version == theirs.ir_version
    assert [(o.domain, o.version) for o in ours.operator_sets] == [(o.domain, o.version) for o in theirs.opset_import]
    tensors = [(t.name, t.dims, t.element) for t in ours.graph.initializers]
    assert tensors == [(t.name, [*t.dims], t.data_type) for t in theirs.graph.initializer]
    assert len(ours.graph.nodes) == len(theirs.graph.node)
    for mine, other in zip(ours.graph.nodes, theirs.graph.node, strict=True):
        assert (mine.operator, mine.domain, mine.name) == (other.op_type, other.domain, other.name)
        assert (mine.inputs, mine.outputs) == ([*other.input], [*other.output])
        attributes = [(a.name, a.kind, a.i) for a in mine.attributes]
        assert attributes == [(a.name, a.type, a.i) for a in other.attribute]


def unknown(message) -> bool:
    """True if protobuf met a field that it does not know, anywhere."""
    if len(UnknownFieldSet(message)):
        return True
    nested = (value for each, value in message.ListFields() if each.message_type)
    return any(unknown(one) for value in nested for one in (value if hasattr(value, "__len__") else [value]))


def test_no_beginning_of_a_model_passes():
    data = echo_graph()
    assert [end for end in range(len(data)) if judged(data[:end])] == []


def test_a_small_budget_of_steps_ends_the_walk():
    with pytest.raises(ProtobufError, match="more fields"):
        read_onnx_model(echo_graph(), max_fields=10)
