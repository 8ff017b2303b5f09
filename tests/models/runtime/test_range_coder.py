"""The range coder for machines without the library `constriction` makes the library's bytes, and reads them."""

import contextlib
import sys
from collections.abc import Iterator

import constriction
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.runtime import codec_ans, range_coder
from models.runtime.codec_ans import COUNT_SUM, build_ans_tables, encode_ans, read_ans_tables, scale_counts
from models.runtime.codec_steps import build_step_tables, decode_steps, encode_steps, read_step_tables
from models.runtime.range_coder import CategoricalModel, RangeDecoder, RangeEncoder
from tests.models.runtime.test_codec_steps import SETTINGS
from tests.models.runtime.test_codec_steps import drawn as draw_steps

QUEUE = constriction.stream.queue
FAMILY = constriction.stream.model.Categorical(perfect=False)
SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed: int, count: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Symbols, likely and unlikely ones, with a row of probabilities each, some of them steep."""
    rng = np.random.default_rng(seed)
    weights = (rng.random((count, levels)) ** rng.integers(1, 40) * 1e6).astype(np.int64) + 1
    counts = scale_counts(weights).astype(np.float32)
    symbols = np.where(rng.random(count) < 0.7, counts.argmax(1), rng.integers(0, levels, count))
    return symbols.astype(np.int32), counts / np.float32(COUNT_SUM)


@given(SEEDS, st.integers(0, 400), st.integers(2, 40))
def test_the_same_symbols_become_the_same_words_and_states(seed, count, levels):
    symbols, probabilities = drawn(seed, count, levels)
    ours, theirs = RangeEncoder(), QUEUE.RangeEncoder()
    ours.encode(symbols, CategoricalModel(), probabilities)
    theirs.encode(symbols, FAMILY, probabilities)
    assert ours.get_compressed().tolist() == theirs.get_compressed().tolist()
    lower, width = ours.pos()[1]
    assert (lower, width) == theirs.pos()[1]
    if lower + width <= 1 << 64:  # no carry is open: all words before the state are final
        assert ours.pos()[0] == theirs.pos()[0]
    assert codec_ans.finish_payload(ours) == codec_ans.finish_payload(theirs)


@given(SEEDS, st.integers(1, 400), st.integers(2, 40))
def test_each_decodes_what_the_other_made(seed, count, levels):
    symbols, probabilities = drawn(seed, count, levels)
    theirs = QUEUE.RangeEncoder()
    theirs.encode(symbols, FAMILY, probabilities)
    words = theirs.get_compressed()
    assert RangeDecoder(words).decode(CategoricalModel(), probabilities).tolist() == symbols.tolist()


@given(SEEDS, st.lists(st.integers(0, 2**32 - 1), max_size=30))
def test_any_words_are_decoded_alike_or_refused_by_both(seed, words):
    _, probabilities = drawn(seed, 60, 9)
    data = np.array([*words, *[0] * 80], np.uint32)
    try:
        theirs = QUEUE.RangeDecoder(data).decode(FAMILY, probabilities).tolist()
    except codec_ans.DECODER_ERRORS:
        theirs = None
    try:
        ours = RangeDecoder(data).decode(CategoricalModel(), probabilities).tolist()
    except codec_ans.DECODER_ERRORS:
        ours = None
    assert ours == theirs


def test_a_carry_that_runs_through_many_words_is_made_as_the_library_makes_it():
    rng = np.random.default_rng(3)
    probabilities = np.tile(np.array([1 - 2**-16, 2**-16], np.float32), (4000, 1))
    crossed = 0
    for _ in range(40):
        symbols = (rng.random(4000) < 0.5).astype(np.int32)
        ours, theirs = RangeEncoder(), QUEUE.RangeEncoder()
        ours.encode(symbols, CategoricalModel(), probabilities)
        theirs.encode(symbols, FAMILY, probabilities)
        assert ours.get_compressed().tolist() == theirs.get_compressed().tolist()
        crossed += ours.pos()[1][0] + ours.pos()[1][1] > 1 << 64
    words = [5, range_coder._WORD, range_coder._WORD]
    range_coder._carry_into(words)
    assert words == [6, 0, 0]


@contextlib.contextmanager
def without_library() -> Iterator[None]:
    """This process as on a machine without `constriction`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "constriction", None)
        codec_ans._ans_library.cache_clear()
        assert codec_ans.new_encoder().__class__ is RangeEncoder
        yield
    codec_ans._ans_library.cache_clear()


@pytest.mark.further
def test_devices_and_hubs_with_and_without_the_library_read_each_other_byte_for_byte():
    codes, wide = np.random.default_rng(5).integers(0, 5, (100, 60)).astype(np.uint8), draw_steps(100, seed=9)
    with without_library():
        tables, steps = build_ans_tables(codes, 5), build_step_tables(wide, SETTINGS)
        sent = [encode_ans(row, read_ans_tables(tables)[0]) for row in codes]
        stepped = [encode_steps(row, read_step_tables(steps)[0]) for row in wide]
        read = [decode_steps(each, read_step_tables(steps)[0]).tolist() for each in stepped]
    assert codec_ans.new_encoder().__class__ is QUEUE.RangeEncoder
    assert (tables, steps) == (build_ans_tables(codes, 5), build_step_tables(wide, SETTINGS))
    assert sent == [encode_ans(row, read_ans_tables(tables)[0]) for row in codes]
    assert stepped == [encode_steps(row, read_step_tables(steps)[0]) for row in wide]
    assert read == [decode_steps(each, read_step_tables(steps)[0]).tolist() for each in stepped]


def test_a_model_of_one_table_and_misuse_of_models():
    counts = np.array([0.25, 0.5, 0.125], np.float32)  # no whole: the library makes one of it
    ours, theirs = RangeEncoder(), QUEUE.RangeEncoder()
    symbols = np.array([0, 1, 2, 1, 1, 0], np.int32)
    ours.encode(symbols, CategoricalModel(counts))
    theirs.encode(symbols, constriction.stream.model.Categorical(counts, lazy=True, perfect=False))
    words = ours.get_compressed()
    assert words.tolist() == theirs.get_compressed().tolist()
    assert RangeDecoder(words).decode(CategoricalModel(counts), 6).tolist() == symbols.tolist()
    with pytest.raises(ValueError, match="family"):
        ours.encode(symbols, CategoricalModel())
    with pytest.raises(ValueError, match="perfect"):
        CategoricalModel(counts, perfect=True)
