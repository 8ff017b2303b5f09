"""N-gram hashing, the text network, and the CLINC150 split without leakage between parts."""

import os
import subprocess
import sys
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.forge.clinc150 import load_clinc150
from benchmarks.forge.ngrams import (
    BUCKETS,
    LENGTH,
    NgramDropout,
    NgramEnsemble,
    NgramNet,
    NgramNetSizes,
    NgramTraining,
    encode_texts,
    iter_ngrams,
    train_ngram_net,
)
from models.forge.data.types import OUT_OF_SCOPE
from models.forge.partition.cuts import find_cuts, trace_model
from models.forge.partition.split import split_model
from tests.examples import count_examples

SIZES = NgramNetSizes(buckets=4096, rows=400, width=16, hidden=24, labels=3)
TALK = (
    ("play some loud music", "play the next song", "put on some jazz music", "play music from the nineties"),
    ("what is the weather today", "will it rain today", "is it sunny in the north today", "how cold will it be today"),
    ("move money to savings", "send money to my account", "pay the bill from my account", "how much money have i"),
)
needs_data = pytest.mark.skipif(not os.environ.get("SKERRY_DATA"), reason="SKERRY_DATA names no folder of real data")


@pytest.fixture(scope="module")
def taught():
    texts = [text for kind in TALK for text in kind]
    y = np.repeat(np.arange(3), 4)
    x = encode_texts(texts * 8, SIZES.buckets, 64)
    net = NgramNet(SIZES)
    losses = []
    train_ngram_net(net, x, np.tile(y, 8), NgramTraining(epochs=30, batch=32), lambda _, loss: losses.append(loss))
    return net, losses


def test_the_first_numbers_of_a_text_are_those_the_page_says():
    ids = encode_texts(["Pay me!"])[0]
    expected = ["w:<", "w:pay", "w:me", "w:>", "w:< pay", "w:pay me"]
    assert ids[:6].tolist() == [1 + crc32(gram.encode()) % (BUCKETS - 1) for gram in expected]
    assert {"w:pay me >", "c: pa", "c:pay ", "c: pay "} <= set(iter_ngrams("Pay me!"))
    assert ids.shape == (LENGTH,)


@given(st.lists(st.text(max_size=200), min_size=1, max_size=4))
@settings(max_examples=count_examples(60), deadline=None)
def test_any_text_becomes_numbers_within_the_buckets_each_once(texts):
    found = encode_texts(texts, 1024, 50)
    assert found.shape == (len(texts), 50)
    assert found.min() >= 0
    assert found.max() < 1024
    for row in found:
        used = row[row > 0]
        assert len(set(used.tolist())) == len(used)
        assert not row[len(used) :].any()  # zeros only behind the last


@given(st.text(max_size=60))
@settings(max_examples=count_examples(60), deadline=None)
def test_case_and_gaps_do_not_matter(text):
    spaced = "  " + text.lower().replace(" ", " \t!") + " ..."
    assert np.array_equal(encode_texts([text.lower()]), encode_texts([spaced]))


@pytest.mark.further
def test_equal_numbers_in_another_process():
    code = "from benchmarks.forge.ngrams import encode_texts; print(encode_texts(['wo ist der bahnhof'])[0].sum())"
    environment = {**os.environ, "PYTHONHASHSEED": "99"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert int(said.stdout) == encode_texts(["wo ist der bahnhof"])[0].sum()


def test_a_net_learns_and_is_sure_only_of_what_it_has_read(taught):
    net, losses = taught
    assert losses[-1] < 0.75 * losses[0]
    with torch.no_grad():
        read = torch.softmax(net(torch.from_numpy(encode_texts(["play some jazz", "is it cold today"], 4096, 64))), 1)
        strange = torch.softmax(net(torch.from_numpy(encode_texts(["qwyx zzkph vvbq"], 4096, 64))), 1)
    assert read.argmax(1).tolist() == [0, 1]
    assert read.max(1).values.min() > strange.max() + 0.1


def test_an_unknown_word_weighs_and_makes_an_answer_weaker(taught):
    net, _ = taught
    plain, with_more = (
        torch.from_numpy(encode_texts([text], 4096, 64)) for text in ("play music", "play music xqzzy wkrpf")
    )
    with torch.no_grad():
        assert torch.softmax(net(with_more), 1).max() < torch.softmax(net(plain), 1).max()


def test_the_order_of_numbers_and_the_zeros_between_them_do_not_matter(taught):
    net, _ = taught
    ids = encode_texts(["will it rain in the north"], 4096, 64)
    shuffled = np.random.default_rng(0).permutation(ids[0])[None]
    with torch.no_grad():
        assert torch.allclose(net(torch.from_numpy(ids)), net(torch.from_numpy(shuffled)), atol=1e-5)


def test_a_text_of_nothing_has_an_answer_without_nan(taught):
    with torch.no_grad():
        assert torch.isfinite(taught[0](torch.zeros(1, 64, dtype=torch.long))).all()


def test_equal_training_gives_equal_weights(taught):
    texts = [text for kind in TALK for text in kind]
    x, y = encode_texts(texts * 8, SIZES.buckets, 64), np.tile(np.repeat(np.arange(3), 4), 8)
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        net = NgramNet(SIZES)
        train_ngram_net(net, x, y, NgramTraining(epochs=1, batch=32), lambda *_: None)
        made.append(net.state_dict())
    assert all(torch.equal(made[0][key], made[1][key]) for key in made[0])


@pytest.mark.further
def test_the_net_can_be_cut_behind_the_vector_of_a_text(taught):
    net, _ = taught
    ids = torch.from_numpy(encode_texts(["pay the bill", "play a song"], 4096, 64))
    traced = trace_model(net, ids)
    wanted = [cut for cut in find_cuts(traced) if cut.shapes == ((SIZES.width,),)]
    assert wanted
    halves = split_model(traced, wanted[-1])
    with torch.no_grad():
        found = halves.head(ids)
        features = found if isinstance(found, tuple) else (found,)
        assert torch.allclose(halves.tail(*features), net(ids), atol=1e-5)


@pytest.mark.further
def test_an_ensemble_answers_with_the_mean_of_its_members_and_is_cut_behind_the_vector_of_all(taught):
    first, _ = taught
    second = NgramNet(SIZES).eval()
    second.row.copy_(first.row)
    second.rarity.copy_(first.rarity)
    whole = NgramEnsemble(SIZES, 2)
    for number, net in enumerate((first, second)):
        whole.take_member(number, net)
    whole.eval()
    ids = torch.from_numpy(encode_texts(["pay the bill", "play a song"], 4096, 64))
    with torch.no_grad():
        assert torch.allclose(whole(ids), (first(ids) + second(ids)) / 2, atol=1e-5)
    traced = trace_model(whole, ids)
    assert [cut for cut in find_cuts(traced) if cut.shapes == ((2 * SIZES.width,),)]


def test_forgetting_keeps_texts_and_leaves_some_n_grams_out():
    ids = torch.from_numpy(encode_texts(["what is the weather in the north today"]))
    chance = torch.Generator().manual_seed(0)
    fewer = NgramDropout(0.5)(ids, chance)
    assert fewer.shape == ids.shape
    assert 0 < int((fewer > 0).sum()) < int((ids > 0).sum())
    assert bool(((fewer == ids) | (fewer == 0)).all())


@needs_data
def test_the_real_set_has_the_published_sizes_and_nothing_out_of_scope_is_learnt():
    data = load_clinc150()
    assert [len(part) for part in (data.training, data.calibration, data.heldout)] == [15_000, 3_100, 5_500]
    assert [(part.y == OUT_OF_SCOPE).sum() for part in (data.training, data.calibration, data.heldout)] == [
        0,
        100,
        1000,
    ]
    assert len(data.labels) == 150
    for part in (data.training, data.calibration, data.heldout):
        assert part.x[0].dtype == np.int64
        assert part.x[0].max() < BUCKETS
