"""CLINC150 intent classifier of the zoo: a net over hashed n-grams, its samples and its training.

Rule: `skerry models forge models.zoo.clinc150:build_model --data models.zoo.clinc150:samples` uses what stands here and
nothing else. The device turns text into the net's input with `models.zoo.ngrams.encode`; the text itself
never leaves.
"""

import sys
from hashlib import sha256

import safetensors.torch
from torch import nn

from models.forge.data.types import Data
from models.forge.training.determinism import repeatable
from models.zoo import datasets
from models.zoo.ngrams import BUCKETS, Course, Forget, NgramNet, Sizes, train
from models.zoo.training import folder

SIZES = Sizes(BUCKETS, rows=49_152, width=192, hidden=1024, labels=150)
COURSE = Course()


def build_model() -> nn.Module:
    """A net of 10.9 M parameters, nearly all of them n-gram vectors; trained once and cached.

    Raises ForgeError without data and cached weights.
    """
    net = NgramNet(SIZES)
    path = folder() / f"clinc150-{sha256(repr((SIZES, COURSE)).encode()).hexdigest()[:12]}.safetensors"
    if path.exists():
        net.load_state_dict(safetensors.torch.load(path.read_bytes()))
        return net.eval()
    part = datasets.clinc150().training
    with repeatable(COURSE.seed):
        net = NgramNet(SIZES)
        train(net, part.x[0], part.y, COURSE, _told)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(safetensors.torch.save({key: value.contiguous() for key, value in net.state_dict().items()}))
    fresh.replace(path)
    return net


def samples() -> Data:
    """Training, calibration and held-out texts, as `datasets.clinc150`."""
    return datasets.clinc150()


def augment() -> Forget:
    """Random dropping of n-grams, for `--augment`."""
    return Forget()


def _told(done: int, loss: float) -> None:
    print(f"clinc150: epoch {done} of {COURSE.epochs}, loss {loss:.3f}", file=sys.stderr)
