"""Sets that the forge was not made with: the package index, simulated motion, spectrograms, and their split."""

import numpy as np
import pytest
import torch

from benchmarks.forge.unseen.package_index import parse_index
from benchmarks.forge.unseen.package_text import LENGTH, WordTransformer
from benchmarks.forge.unseen.plain_training import PlainTraining, load_or_train_plain, split_by_group
from benchmarks.forge.unseen.simulated_motion import ACTIVITIES, CHANNELS, STEPS, Person
from benchmarks.forge.unseen.synthetic_speech import BANDS, FRAMES, HOP, RATE_HZ, WINDOW, make_spectrogram

INDEX = """Package: libfoo1
Source: foo (1.2-1)
Section: contrib/libs
Installed-Size: 12
Description: library of foo: fast
Tag: role::shared-lib,
 works-with::text

Package: bar
Section: utils
Description: bars

Package: virtual
Section: utils
"""


def test_packages_are_read_with_their_source_and_section_and_without_continued_lines():
    first, second = parse_index(INDEX)
    assert (first.name, first.source, first.section, first.summary) == ("bar", "bar", "utils", "bars")
    assert (second.source, second.section, second.summary) == ("foo", "libs", "library of foo: fast")
    assert second.fields["Tag"] == "role::shared-lib,"


def test_no_group_is_in_two_parts():
    group = np.repeat(np.arange(50), 4)
    x = np.stack([group, np.arange(200)], axis=1).astype(np.float32)
    data = split_by_group(x, group % 3, group, ("a", "b", "c"))
    seen = [set(part.x[0][:, 0]) for part in (data.training, data.calibration, data.heldout)]
    assert sum(map(len, seen)) == 50
    assert len(set.union(*seen)) == 50
    assert [len(part) for part in (data.training, data.calibration, data.heldout)] == [128, 32, 40]


@pytest.mark.further
def test_a_plain_net_is_trained_once_and_read_from_the_cache_afterwards(tmp_path, monkeypatch):
    monkeypatch.setenv("SKERRY_ZOO_CACHE", str(tmp_path))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4)).astype(np.float32)
    data = split_by_group(x, (x[:, 0] > 0).astype(np.int64), np.arange(600), ("no", "yes"))
    make = lambda: torch.nn.Linear(4, 2)  # noqa: E731
    first = load_or_train_plain("tiny", make, lambda: data, PlainTraining(30, 0.05))
    answers = first(torch.from_numpy(data.heldout.x[0])).argmax(1).numpy()
    assert (answers == data.heldout.y).mean() > 0.9
    second = load_or_train_plain("tiny", make, lambda: pytest.fail("trained again"), PlainTraining(30, 0.05))
    state = second.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in first.state_dict().items())


def test_words_that_fill_up_a_text_change_nothing():
    torch.manual_seed(0)
    net = WordTransformer(5).eval()
    ids = torch.zeros(2, LENGTH, dtype=torch.int64)
    ids[:, :3] = torch.tensor([7, 9, 2])
    with torch.no_grad():
        net.words.weight[0] = 0
        before = net(ids)
        net.places[5] += 10
        assert torch.allclose(before, net(ids), atol=1e-5)


def test_a_runner_moves_more_than_one_who_stands():
    rng = np.random.default_rng(3)
    person = Person(rng)
    still, run = (person.move(ACTIVITIES.index(name), rng) for name in ("standing", "running"))
    assert still.shape == run.shape == (CHANNELS, STEPS)
    assert run[:3].std(1).sum() > 2 * still[:3].std(1).sum()


def test_a_tone_is_one_bright_band_of_the_spectrogram():
    time_s = np.arange(WINDOW + HOP * (FRAMES - 1)) / RATE_HZ
    low, high = (make_spectrogram(np.sin(2 * np.pi * hz * time_s).astype(np.float32)) for hz in (300, 3000))
    assert low.shape == (BANDS, FRAMES)
    assert low.mean(1).argmax() < high.mean(1).argmax()
    assert high.max() == 1
