import io
import pickle

import numpy as np
import pytest

from models.bundle.manifest import GOLDEN_FILE, BundleError
from models.runtime.golden import check_golden, pack_golden
from models.runtime.onnx_runner import OnnxRunner
from tests.models.bundles import write_bundle
from tests.models.conftest import contents, echo_graph, make


def with_golden(made, golden: bytes):
    return write_bundle(made.path, made.manifest, {**contents(), GOLDEN_FILE: golden})


def test_a_sound_bundle_passes_its_own_test(made):
    golden = check_golden(made, OnnxRunner(made))
    assert golden.passed
    assert (golden.samples, golden.labels_equal, golden.codes_equal, golden.codes_moved) == (8, 8, 1.0, 0)
    assert golden.scores_moved < 1e-6


def test_a_graph_that_answers_differently_fails(tmp_path):
    other = make(tmp_path / "b", echo_graph(scale=-1.0))
    golden = check_golden(other, OnnxRunner(other))
    assert not golden.passed
    assert golden.labels_equal < golden.samples


def test_a_code_two_levels_off_fails(made):
    arrays = dict(np.load(io.BytesIO(made.read_file(GOLDEN_FILE))))
    arrays["features"][0, 0] ^= 2
    bundle = with_golden(made, pack_golden(arrays["input"], arrays["scores"], {"features": arrays["features"]}))
    golden = check_golden(bundle, OnnxRunner(bundle))
    assert golden.codes_moved == 2
    assert not golden.passed


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a golden file was unpickled",))


def pickled() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, input=np.array([Bomb()], object))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "golden", [b"", b"no zip", pickled(), pickle.dumps(Bomb())], ids=["empty", "text", "npz", "pickle"]
)
def test_a_golden_file_is_never_unpickled_nor_guessed_at(made, golden):
    bundle = with_golden(made, golden)
    with pytest.raises(BundleError, match=r"golden\.npz cannot be read") as caught:
        check_golden(bundle, OnnxRunner(bundle))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("left_out", ["input", "scores", "features"])
def test_a_golden_file_that_lacks_an_array_does_not_fit(made, left_out):
    arrays = dict(np.load(io.BytesIO(made.read_file(GOLDEN_FILE))))
    del arrays[left_out]
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    bundle = with_golden(made, buffer.getvalue())
    with pytest.raises(BundleError, match="does not fit"):
        check_golden(bundle, OnnxRunner(bundle))
