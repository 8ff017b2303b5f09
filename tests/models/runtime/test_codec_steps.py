"""Tests of entropy coding with a step per sample: one length, the finest step that fits, only canonical payloads."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.runtime import codec_steps
from models.runtime.codec_ans import COUNT_SUM
from models.runtime.codec_steps import (
    STEPS,
    StepClass,
    StepSettings,
    build_step_tables,
    decode_steps,
    encode_steps,
    estimate_bits,
    read_step_tables,
)
from models.runtime.feature_codec import ANS_STEPS, CodecError, build_codec
from tests.random_inputs import COUNTS, random_inputs, try_parser
from wire.protocol.messages import FieldSpec, SensitivityLevel, Tensor, TensorDType

SPREADS = (40.0, 20.0, 20.0, *[6.0] * 9, *[1.5] * 20)
CLASSES = (StepClass(1, 2), StepClass(2), StepClass(9), StepClass(20))
SETTINGS = StepSettings(256, 128, 14, CLASSES)


def drawn(count, seed=7, scale=1.0):
    """Codes of coefficients that spread less and less, around 128."""
    wide = np.random.default_rng(seed).laplace(0, np.array(SPREADS) * scale, (count, len(SPREADS)))
    return (128 + np.rint(wide)).clip(0, 255).astype(np.uint8)


FILE = build_step_tables(drawn(400), SETTINGS)
(TABLE,) = read_step_tables(FILE)
NARROW_FILE = build_step_tables(drawn(60)[:, :8] % 5, StepSettings(5, 0, 3, (StepClass(8),)))
(NARROW,) = read_step_tables(NARROW_FILE)
codes_of_any_kind = arrays(np.uint8, len(SPREADS), elements=st.integers(0, 255))
payloads = st.binary(min_size=14, max_size=14)


def error_of(codes, table=TABLE):
    return float(np.abs(decode_steps(encode_steps(codes, table), table).astype(int) - codes).mean())


@given(codes_of_any_kind)
def test_every_payload_has_one_length_and_what_is_decoded_has_one_payload(codes):
    payload = encode_steps(codes, TABLE)
    assert len(payload) == SETTINGS.payload_bytes
    assert encode_steps(decode_steps(payload, TABLE), TABLE) == payload


@given(arrays(np.uint8, 8, elements=st.integers(0, 4)))
def test_few_levels_counted_from_zero_are_coded_too(codes):
    payload = encode_steps(codes, NARROW)
    found = decode_steps(payload, NARROW)
    assert encode_steps(found, NARROW) == payload
    assert found.max() <= 4


def test_a_quiet_sample_arrives_exactly_and_a_busy_one_more_coarsely():
    quiet, usual, busy = (drawn(50, seed=8, scale=scale) for scale in (0.05, 1.0, 4.0))
    assert sum(error_of(one) == 0 for one in quiet) >= 45
    assert 0 < np.mean([error_of(one) for one in usual]) < 4
    assert np.mean([error_of(one) for one in usual]) < np.mean([error_of(one) for one in busy])


def test_a_longer_payload_is_more_exact():
    sizes = (6, 10, 20, 40)
    tables = [
        read_step_tables(build_step_tables(drawn(400), SETTINGS._replace(payload_bytes=size)))[0] for size in sizes
    ]
    errors = [np.mean([error_of(one, table) for one in drawn(40, seed=9)]) for table in tables]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0 < errors[0]


def test_a_sample_of_noise_that_fits_at_no_step_arrives_as_the_centre():
    table = read_step_tables(build_step_tables(drawn(400, scale=0.02), SETTINGS._replace(payload_bytes=1)))[0]
    noise = np.where(np.arange(len(SPREADS)) % 2, 255, 0).astype(np.uint8)
    assert (decode_steps(encode_steps(noise, table), table) == 128).all()


def test_what_is_estimated_is_what_it_takes():
    wide = read_step_tables(build_step_tables(drawn(400), SETTINGS._replace(payload_bytes=60)))[0]
    codes = drawn(40, seed=9)
    taken = [len(encode_steps(one, wide).rstrip(b"\0")) for one in codes]
    estimated = estimate_bits(codes, wide, 0) / 8
    assert 0 < np.median(taken - estimated) < 1.6
    assert np.abs(taken - estimated).max() < 5


@given(payloads)
def test_garbage_is_a_codec_error_or_exactly_what_its_codes_encode_to(data):
    try:
        codes = decode_steps(data, TABLE)
    except CodecError:
        return
    assert encode_steps(codes, TABLE) == data


@given(codes_of_any_kind, st.integers(0, 14 * 8 - 1))
def test_a_flipped_bit_never_gives_a_second_form(codes, bit):
    payload = bytearray(encode_steps(codes, TABLE))
    sent = decode_steps(bytes(payload), TABLE)
    payload[bit // 8] ^= 1 << bit % 8
    try:
        found = decode_steps(bytes(payload), TABLE)
    except CodecError:
        return
    assert encode_steps(found, TABLE) == payload
    assert not np.array_equal(found, sent)


def test_a_coarser_step_than_needed_is_refused():
    """The same codes at another step are other bytes: a second payload of one meaning would be a hidden channel."""
    centre = np.full(len(SPREADS), 128, np.uint8)
    payload = encode_steps(centre, TABLE)
    assert (decode_steps(payload, TABLE) == 128).all()
    for step in range(1, STEPS):
        other = codec_steps._encode_at(step, TABLE.class_rows + centre, TABLE).ljust(14, b"\0")
        assert other != payload
        with pytest.raises(CodecError, match="not the payload"):
            decode_steps(other, TABLE)


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_tables_are_refused_or_still_code_every_sample(count):
    def parse(data):
        for table in read_step_tables(data):
            if table.positions == len(SPREADS) and table.settings.levels == 256:
                payload = encode_steps(drawn(1)[0], table)
                assert len(payload) == table.settings.payload_bytes
                assert encode_steps(decode_steps(payload, table), table) == payload

    assert try_parser(parse, CodecError, random_inputs(count, (FILE, NARROW_FILE))) < count


@pytest.mark.parametrize("size", [1, 27, 28, 40, len(FILE) - 1, len(FILE) + 1])
def test_tables_that_end_too_early_or_go_on_are_refused(size):
    with pytest.raises(CodecError):
        read_step_tables((FILE + b"\0")[:size])


@pytest.mark.parametrize(
    "changed",
    [
        {"levels": 1},
        {"levels": 257},
        {"centre": 256},
        {"payload_bytes": 0},
        {"payload_bytes": 10_000},
        {"classes": ()},
        {"classes": (StepClass(31),)},
        {"classes": (StepClass(32, 0),)},
        {"classes": (StepClass(32, 256),)},
        {"classes": (StepClass(0), StepClass(32))},
    ],
)
def test_no_table_is_made_of_impossible_settings(changed):
    with pytest.raises(CodecError):
        build_step_tables(drawn(5), SETTINGS._replace(**changed))


@pytest.mark.parametrize("codes", [drawn(0), drawn(5).astype(np.int64), drawn(5)[:, :0]])
def test_no_table_is_made_of_what_are_no_codes(codes):
    with pytest.raises(CodecError):
        build_step_tables(codes, SETTINGS)


def test_counts_of_every_step_are_whole_and_complete():
    for step in range(STEPS - 1):
        for index in range(len(CLASSES)):
            counts = TABLE.step_counts(step, index)
            assert counts.sum() == COUNT_SUM
            assert counts.min() >= 1


def test_the_form_is_the_same_on_every_machine_and_with_every_edition_of_the_library():
    settings = StepSettings(8, 4, 3, (StepClass(2), StepClass(4)))
    codes = (4 + np.arange(60).reshape(10, 6) % 3 - 1).astype(np.uint8)
    (table,) = read_step_tables(build_step_tables(codes, settings))
    assert encode_steps(np.array([4, 5, 3, 4, 4, 5], np.uint8), table).hex() == "0c0800"
    assert encode_steps(np.array([0, 7, 0, 7, 0, 7], np.uint8), table).hex() == "095300"


def test_threads_may_share_a_table_that_was_just_opened():
    (table,) = read_step_tables(FILE)
    codes = drawn(20, seed=3)
    wanted = [encode_steps(one, TABLE) for one in codes]
    found: list[list[bytes]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda out=out: out.extend(encode_steps(one, table) for one in codes)) for out in found
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 4


def test_on_the_link_it_is_a_codec_like_the_others():
    spec = FieldSpec("features", TensorDType.UINT8, (8, 4), 0, 255, SensitivityLevel.P2, "features")
    codec = build_codec(ANS_STEPS, (spec,), FILE)
    row = np.full((8, 4), 130, np.uint8)
    tensor = codec.encode("features", row)
    assert tensor.shape == (codec.total_bytes,) == (14,)
    assert np.array_equal(codec.decode("features", tensor), row)
    with pytest.raises(CodecError):
        codec.decode("features", Tensor(TensorDType.UINT8, tensor.shape, b"\xff" * 14))
    with pytest.raises(CodecError):
        build_codec(ANS_STEPS, (spec, spec), FILE)
    with pytest.raises(CodecError):
        build_codec(
            ANS_STEPS, (FieldSpec("features", TensorDType.UINT8, (8, 5), 0, 255, SensitivityLevel.P2, "f"),), FILE
        )
