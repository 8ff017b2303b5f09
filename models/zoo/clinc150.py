"""CLINC150 intent classifier of the zoo: a net over hashed n-grams, its samples and its training.

Rule: `skerry models forge models.zoo.clinc150:build_model --data models.zoo.clinc150:samples` uses what stands here and
nothing else. The device turns text into the net's input with `models.zoo.ngrams.encode_texts`; the text itself
never leaves.
"""

import sys
from hashlib import sha256

import safetensors.torch
from torch import nn

from models.forge.data.types import Data
from models.forge.training.determinism import deterministic_torch
from models.zoo import datasets
from models.zoo.ngrams import BUCKETS, NgramDropout, NgramNet, NgramNetSizes, NgramTraining, train_ngram_net
from models.zoo.training import zoo_cache_folder

SIZES = NgramNetSizes(BUCKETS, rows=49_152, width=192, hidden=1024, labels=150)
COURSE = NgramTraining()


def build_model() -> nn.Module:
    """A net of 10.9 M parameters, nearly all of them n-gram vectors; trained once and cached.

    Raises ForgeError without data and cached weights.
    """
    net = NgramNet(SIZES)
    path = zoo_cache_folder() / f"clinc150-{sha256(repr((SIZES, COURSE)).encode()).hexdigest()[:12]}.safetensors"
    if path.exists():
        net.load_state_dict(safetensors.torch.load(path.read_bytes()))
        return net.eval()
    part = datasets.load_clinc150().training
    with deterministic_torch(COURSE.seed):
        net = NgramNet(SIZES)
        train_ngram_net(net, part.x[0], part.y, COURSE, _print_progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(safetensors.torch.save({key: value.contiguous() for key, value in net.state_dict().items()}))
    fresh.replace(path)
    return net


def samples() -> Data:
    """Training, calibration and held-out texts, as `datasets.load_clinc150`."""
    return datasets.load_clinc150()


def augment() -> NgramDropout:
    """Random dropping of n-grams, for `--augment`."""
    return NgramDropout()


def _print_progress(done: int, loss: float) -> None:
    print(f"clinc150: epoch {done} of {COURSE.epochs}, loss {loss:.3f}", file=sys.stderr)
