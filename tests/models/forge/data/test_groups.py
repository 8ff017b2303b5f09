"""Groups of samples (patients, users, machines): kept with their samples, and in one part of the data each."""

import numpy as np
import pytest
import torch

from models.forge.data.coerce import check_data, coerce_data
from models.forge.data.packing import pack_inputs
from models.forge.data.types import Data, DataPart, ForgeError, select_rows

COUNT = 300


def samples(groups):
    """Samples whose only number is the group they come from."""
    return np.asarray(groups, np.float32)[:, None], np.arange(len(groups)) % 3, ("a", "b", "c"), {}


def users(count, rows=COUNT):
    return np.random.default_rng(1).integers(count, size=rows)


def parts(data):
    return data.training, data.calibration, data.heldout


@pytest.mark.parametrize("count", [3, 4, 10, 60])
def test_no_user_is_in_two_parts_and_each_part_has_one(count):
    groups = users(count)
    data = check_data(coerce_data((*samples(groups), groups)))
    found = [set(part.groups.tolist()) for part in parts(data)]
    assert sum(map(len, found)) == len(set.union(*found)) == count
    assert all(found)
    assert sum(map(len, parts(data))) == COUNT
    for part in parts(data):
        assert part.x[0][:, 0].tolist() == part.groups.tolist(), "each sample keeps its group"


def test_seven_tenths_of_many_users_are_trained_on():
    groups = users(100, 5000)
    data = coerce_data((*samples(groups), groups))
    assert len(data.training) == pytest.approx(3500, abs=100)
    assert len(data.calibration) == pytest.approx(750, abs=100)


def test_users_named_by_words_are_numbered():
    names = np.array(["ann", "bob", "eve"])[users(3)]
    data = coerce_data((*samples(users(3)), names))
    assert set(np.concatenate([part.groups for part in parts(data)])) == {0, 1, 2}


def test_groups_of_a_split_set_are_numbered_alike_in_all_parts():
    one, two, three = (
        DataPart((np.zeros((20, 2), np.float32),), np.arange(20) % 2, groups=np.array([name] * 20))
        for name in ("ann", "bob", "ann")
    )
    data = coerce_data(Data(one, two, three, ("a", "b")))
    assert [int(part.groups[0]) for part in parts(data)] == [0, 1, 0]
    with pytest.raises(ForgeError, match="group 0 is in training and in heldout"):
        check_data(data)


@pytest.mark.parametrize(
    ("groups", "hint"),
    [
        (np.zeros(COUNT, int), "1 groups; at least one is needed for each"),
        (np.arange(COUNT - 1), "299 groups for 300 samples"),
        (np.zeros((COUNT, 2), int), "groups has shape"),
    ],
)
def test_groups_that_cannot_be_are_refused_in_one_line(groups, hint):
    with pytest.raises(ForgeError, match=hint):
        check_data(coerce_data((*samples(np.zeros(COUNT)), groups)))


def test_groups_in_one_part_alone_are_refused():
    plain = DataPart((np.zeros((20, 2), np.float32),), np.arange(20) % 2)
    told = DataPart(plain.x, plain.y, groups=np.arange(20))
    with pytest.raises(ForgeError, match="only calibration have groups; give them in all parts or in none"):
        check_data(Data(plain, told, plain, ("a", "b")))


def test_packing_and_choosing_rows_keep_the_groups():
    groups = users(5, 20)
    x = (np.zeros((20, 2), np.float32), np.zeros((20, 3), np.float32))
    part = DataPart(x, np.arange(20) % 2, groups=groups)
    packed = pack_inputs(_Joined(), Data(part, part, part, ("a", "b"))).data
    kept = select_rows(part, part.y == 1).groups
    assert packed.training.groups is not None
    assert kept is not None
    assert np.array_equal(packed.training.groups, groups)
    assert np.array_equal(kept, groups[1::2])


class _Joined(torch.nn.Module):
    def forward(self, one, other):
        return torch.cat([one, other], 1)
