"""Loading of users' models and samples: found by name, in any usual form, and refused in one line before any work."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from models.forge.data.types import Data, DataPart, ForgeError
from models.forge.partition.trace import trace_model
from models.forge.pipeline.loading import (
    check_answers,
    check_data,
    check_model,
    check_outputs,
    load_data,
    load_model,
    pack_inputs,
)
from tests.models.doubles.nets import ARCHITECTURES, built

NETS = """
import numpy as np, torch
from torch import nn
def build_model():
    return nn.Linear(4, 3)
def broken():
    raise ValueError("no weights here")
def not_a_model():
    return 3
model = nn.Linear(2, 2)
def samples():
    return np.random.rand(200, 4), np.arange(200) % 3, ("a", "b", "c")
"""


@pytest.fixture
def folder(tmp_path):
    before, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def refused(data, **wish):
    with pytest.raises(ForgeError) as error:
        check_data(data, **wish)
    return line(error)


def part(count=100, labels=3, **change):
    y = np.arange(count) % labels
    given = {"x": (np.zeros((count, 4), np.float32),), "y": y, "sensitive": {}} | change
    return DataPart(**given)


def sound(**change):
    return Data(part(), part(**change), part(), ("a", "b", "c"))


def given_by(function_body, folder, name):
    (folder / f"{name}.py").write_text(
        f"import numpy as np, torch\nfrom types import SimpleNamespace\n{function_body}\n"
    )
    return load_data(f"{name}:samples", folder)


def test_a_model_and_its_samples_are_found_by_name(folder):
    (folder / "my_nets_a.py").write_text(NETS)
    model = load_model("my_nets_a:build_model", folder)
    data = load_data("my_nets_a:samples", folder)
    assert not model.training
    assert load_model("my_nets_a:model", folder).in_features == 2
    assert [len(data.training), len(data.calibration), len(data.heldout)] == [140, 30, 30]
    assert data.training.x[0].dtype == np.float32


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("my_nets_b", "not of the form"),
        ("my_nets_b:", "not of the form"),
        ("../my_nets_b:build_model", "not of the form"),
        ("my_nets_b:build_modle", "did you mean build_model"),
        ("my_nets_b:broken", "ValueError: no weights here"),
        ("my_nets_b:not_a_model", "returns int, not a torch.nn.Module"),
        ("no_such_nets:build_model", "no such module"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(folder, where, says):
    (folder / "my_nets_b.py").write_text(NETS)
    with pytest.raises(ForgeError) as error:
        load_model(where, folder)
    assert says in line(error)


def test_a_users_own_models_package_is_named_as_a_clash(folder):
    (folder / "models").mkdir()
    (folder / "models" / "__init__.py").write_text("")
    (folder / "models" / "net.py").write_text(NETS)
    (folder / "train_me.py").write_text("from models.net import build_model")
    for where in ("models.net:build_model", "train_me:build_model"):
        with pytest.raises(ForgeError, match=r"models: .* has the name of one of Skerry's own packages; rename"):
            load_model(where, folder)


def test_a_file_called_as_a_loaded_library_is_named_as_a_clash(folder):
    (folder / "msgspec.py").write_text(NETS)
    with pytest.raises(ForgeError, match="already loaded"):
        load_model("msgspec:build_model", folder)


def test_a_broken_import_inside_their_file_is_theirs(folder):
    (folder / "my_nets_c.py").write_text("import no_such_library_of_theirs")
    with pytest.raises(ForgeError) as error:
        load_model("my_nets_c:build_model", folder)
    assert "No module named 'no_such_library_of_theirs'" in line(error)


def test_our_own_zoo_is_loaded_from_anywhere(folder):
    with pytest.raises(ForgeError, match="has no build_modle"):
        load_model("models.zoo.datasets:build_modle", folder)


SHAPES = {
    "numpy": "def samples(): return np.ones((80, 4)), np.arange(80) % 2",
    "torch": "def samples(): return torch.ones(80, 4, dtype=torch.float64), torch.arange(80) % 2",
    "rows": "def samples(): return [[1.0, 2, 3, 4]] * 80, [0, 1] * 40",
    "tensors": "def samples(): return [torch.ones(4)] * 80, [0, 1] * 40",
    "names": "def samples(): return np.ones((80, 4)), ['1', '0'] * 40, ['0', '1']",
    "named": "def samples(): return np.ones((80, 4)), np.array(['0', '1'] * 40)",
    "column": "def samples(): return np.ones((80, 4)), (np.arange(80) % 2)[:, None]",
    "bool": "def samples(): return np.ones((80, 4)), np.arange(80) % 2 == 1",
    "parts": "a = np.ones((20, 4)), np.arange(20) % 2\n"
    "def samples(): return SimpleNamespace(training=a, calibration=a, heldout=a, labels=['0', '1'])",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_samples_come_in_many_shapes(folder, shape):
    data = given_by(SHAPES[shape], folder, f"my_{shape}")
    assert data.labels == ("0", "1")
    every = np.concatenate([one.y for one in (data.training, data.calibration, data.heldout)])
    assert every.dtype == np.int64
    assert sorted(every.tolist()) == [0] * (len(every) // 2) + [1] * (len(every) // 2)
    assert data.training.x[0].dtype == np.float32
    assert data.training.x[0].shape[1:] == (4,)


def test_values_with_a_point_make_a_regressor(folder):
    data = given_by("def samples(): return np.ones((80, 4)), np.arange(80) / 7", folder, "my_values")
    assert data.labels == ()
    assert data.training.y.dtype == np.float32


def test_a_split_is_the_same_every_time_and_shares_no_sample(folder):
    body = "def samples(): return np.arange(100.0)[:, None], np.arange(100) % 2"
    one, two = given_by(body, folder, "my_split_a"), given_by(body, folder, "my_split_b")
    parts = [(data.training, data.calibration, data.heldout) for data in (one, two)]
    assert [p.x[0].tolist() for p in parts[0]] == [p.x[0].tolist() for p in parts[1]]
    assert sorted(np.concatenate([p.x[0][:, 0] for p in parts[0]]).tolist()) == list(range(100))


def test_sensitive_columns_may_be_names(folder):
    body = "def samples(): return np.ones((80, 4)), np.arange(80) % 2, (), {'speaker': ['ann', 'bob'] * 40}"
    assert set(given_by(body, folder, "my_columns").training.sensitive["speaker"].tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def samples(): return 3", "is not understood"),
        ("def samples(): return {'x': 1}", "is not understood"),
        ("def samples(): return np.ones((60, 4)), np.zeros((60, 2))", "targets of shape"),
        ("def samples(): return np.ones((50, 4)), np.arange(60) % 2", "50 samples of input 0 but 60 targets"),
        ("def samples(): return [[1], [1, 2]] * 30, np.arange(60) % 2", "row 1 of x has shape [2], row 0 [1]"),
        ("def samples(): return np.ones((60, 4)), ['a', 'x'] * 30, ['a', 'b']", "row 1 of y is 'x', none of the"),
        ("def samples(): return np.ones((6, 4)), np.arange(6) % 2", "at least 10"),
    ],
)
def test_samples_that_make_no_sense(folder, body, says):
    name = f"my_nonsense_{abs(hash(body))}"
    with pytest.raises(ForgeError) as error:
        given_by(body, folder, name)
    assert says in line(error)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y": np.full(100, 3)}, "label 3 is out of range 0..2"),
        ({"y": np.full(100, -2)}, "label -2 is out of range"),
        ({"y": np.zeros(100, np.float32)}, "not whole numbers"),
        ({"y": np.full(100, -1)}, "only samples that are out of scope"),
        ({"x": (np.full((100, 4), np.nan, np.float32),)}, "sample 0 of input 0 has NaN"),
        ({"x": (np.zeros((99, 4), np.float32),)}, "99 samples"),
        ({"x": (np.zeros((100, 5), np.float32),)}, "in training [4]"),
        ({"x": (np.zeros((100, 4), np.float32),) * 2}, "has 2 inputs"),
        ({"x": ()}, "has no input"),
        ({"sensitive": {"user": np.zeros(3, np.int64)}}, "sensitive column user has 3"),
        ({"sensitive": {"user": np.zeros(100, np.int64)}}, "other sensitive columns"),
    ],
)
def test_data_that_is_not_sound_is_refused(change, says):
    text = refused(sound(**change))
    assert says in text
    assert "calibration" in text


def test_a_label_nobody_is_taught_is_refused():
    assert "label c (2) has no training sample" in refused(Data(part(labels=2), part(), part(), ("a", "b", "c")))


def test_too_few_samples_for_a_guarantee_says_how_many_are_needed():
    data = sound()
    assert check_data(data, max_risk=0.03) is data
    assert "at least 149" in refused(sound(), max_risk=0.02, confidence=0.95)


def test_a_regressor_with_nothing_to_learn_is_refused():
    same = part(y=np.ones(100, np.float32))
    assert "nothing to learn" in refused(Data(same, same, same))


def test_outputs_must_be_as_many_as_labels():
    check_outputs(3, sound())
    with pytest.raises(ForgeError, match="4 outputs, but the data has 3 labels"):
        check_outputs(4, sound())


def test_a_model_with_nan_is_refused_at_once():
    model = nn.Linear(2, 2)
    model.weight.data.fill_(float("nan"))
    with pytest.raises(ForgeError, match="NaN"):
        check_model(model)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if ARCHITECTURES[name].inputs > 1])
def test_several_inputs_become_one_and_mean_the_same(name):
    model, inputs = built(name), ARCHITECTURES[name].draw(20)
    one = DataPart(tuple(x.numpy() for x in inputs), np.arange(20) % 3)
    packed, data, shapes = pack_inputs(model, Data(one, one, one, ("a", "b", "c")))
    row = torch.from_numpy(data.calibration.x[0])
    assert row.dtype == (torch.float32 if name == "two_inputs" else torch.int64)
    assert shapes == tuple(tuple(x.shape[1:]) for x in inputs)
    with torch.no_grad():
        assert torch.allclose(packed(row), model(*inputs), atol=1e-6)


def test_whole_numbers_that_float32_cannot_hold_are_refused():
    one = DataPart((np.full((20, 1), 1 << 25), np.zeros((20, 1), np.float32)), np.arange(20) % 3)
    with pytest.raises(ForgeError, match="number its kinds from 0"):
        pack_inputs(nn.Identity(), Data(one, one, one, ("a", "b", "c")))


def test_one_input_is_left_as_it_is():
    model, data = nn.Identity(), sound()
    assert pack_inputs(model, data)[:2] == (model, data)


class Dead(nn.Module):
    """A model whose activations have died: only its last bias is left."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        nn.init.constant_(self.first.bias, -1e3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def drawn(spread):
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    part = DataPart((x if spread else np.repeat(x[:1], 64, 0),), np.arange(64) % 3)
    return Data(part, part, part, ("a", "b", "c"))


def test_a_model_that_answers_all_samples_alike_is_refused():
    dead = trace_model(Dead(), torch.randn(2, 4))
    with pytest.raises(ForgeError, match=r"the same answer to each of 64 different samples; is it trained"):
        check_answers(dead, drawn(spread=True))
    with pytest.raises(ForgeError, match="every sample of training has the same numbers as its row 0"):
        check_answers(dead, drawn(spread=False))
    check_answers(trace_model(nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 4)), drawn(spread=True))
