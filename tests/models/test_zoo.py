"""The hub's half: what a manifest may name, and what weights may be."""

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch

from models.manifest import HUB_FILE, BundleError
from models.onnx import OnnxRunner
from models.zoo import build_tail, build_whole


def pictures(count=6):
    return np.random.default_rng(8).random((count, 1, 8, 8), np.float32)


def weights(bundle):
    return safetensors.torch.load(bundle.read(HUB_FILE))


def test_the_tail_takes_the_codes_a_device_sends(forged):
    tail = build_tail(forged.manifest, forged.read(HUB_FILE))
    codes = np.stack([i.features["features"] for i in OnnxRunner(forged).infer(pictures())]).astype(np.float32)
    logits = tail(torch.from_numpy(codes))
    assert logits.shape == (6, 10)
    assert not logits.requires_grad
    assert torch.equal(logits, tail(torch.from_numpy(codes)))  # no dropout at work


def test_the_whole_is_head_and_tail(forged):
    whole = build_whole(forged.manifest, forged.read(HUB_FILE))
    x = torch.from_numpy(pictures())
    logits, codes = whole.get_submodule("head")(x)
    assert torch.equal(whole(x), build_tail(forged.manifest, forged.read(HUB_FILE))(codes))
    assert logits.shape == (6, 10)
    assert torch.equal(codes, codes.round())
    assert 0 <= codes.min() <= codes.max() <= 15


def test_a_batch_does_not_change_an_answer(forged):
    whole = build_whole(forged.manifest, forged.read(HUB_FILE))
    x = torch.from_numpy(pictures())
    together = whole(x)
    alone = torch.cat([whole(one[None]) for one in x])
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("name", ["zoo/unknown", "os/system", "models"])
def test_only_names_in_the_registry_are_built(forged, name):
    manifest = msgspec.structs.replace(
        forged.manifest, hub=msgspec.structs.replace(forged.manifest.hub, architecture=name)
    )
    with pytest.raises(BundleError, match="known: zoo/digits"):
        build_tail(manifest, forged.read(HUB_FILE))


def test_a_manifest_with_another_input_is_refused(forged):
    spec = msgspec.structs.replace(forged.manifest.input, shape=(1, 7, 8))
    with pytest.raises(BundleError, match="even"):
        build_tail(msgspec.structs.replace(forged.manifest, input=spec), forged.read(HUB_FILE))


def test_a_manifest_with_other_codes_is_refused(forged):
    feature = msgspec.structs.replace(forged.manifest.features[0], shape=(4, 4, 4))
    with pytest.raises(BundleError, match="one feature"):
        build_tail(msgspec.structs.replace(forged.manifest, features=(feature,)), forged.read(HUB_FILE))


def unfit(change):
    def damage(named):
        change(named)
        return safetensors.torch.save(named)

    return damage


UNFIT = {
    "not safetensors": lambda _: b"\x80\x04pickle",
    "empty": lambda _: b"",
    "a weight is missing": unfit(lambda named: named.pop("tail.classifier.1.bias")),
    "a weight has another shape": unfit(lambda named: named.update({"head.exit.bias": torch.zeros(3)})),
    "a weight too many": unfit(lambda named: named.update({"tail.more": torch.zeros(1)})),
    "of no half": unfit(lambda named: named.update({"other": torch.zeros(1)})),
    "NaN": unfit(lambda named: named.update({"head.exit.bias": torch.full((10,), float("nan"))})),
}


@pytest.mark.parametrize("case", UNFIT)
def test_unfit_weights_are_refused_in_one_line(forged, case):
    with pytest.raises(BundleError) as caught:
        build_tail(forged.manifest, UNFIT[case](weights(forged)))
    assert "\n" not in str(caught.value)
