"""CLINC150 intent classifier of the trials: an ensemble over hashed n-grams, its samples and its training.

Rule: `skerry models forge benchmarks.forge.clinc150:build_model --data benchmarks.forge.clinc150:samples` uses what
stands here and nothing else. The device turns text into the net's input with `benchmarks.forge.ngrams.encode_texts`;
the text itself never leaves.

Rule: `train` alone is trained on; `val` and `oos_val` choose thresholds; `test` and `oos_test` are only measured on.
The 100 questions of `oos_train` are not used: this is the paper's "oos-threshold" rule, not "oos-train".
"""

import gzip
import json
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import nn

from benchmarks.forge.ngrams import (
    BUCKETS,
    NgramDropout,
    NgramEnsemble,
    NgramNet,
    NgramNetSizes,
    NgramTraining,
    encode_texts,
    train_ngram_net,
)
from models.forge.cache import write_tensors
from models.forge.data.types import OUT_OF_SCOPE, Data, DataPart
from models.forge.training.determinism import deterministic_torch
from models.zoo.sources import find_dataset
from models.zoo.training import zoo_cache_folder

SIZES = NgramNetSizes(BUCKETS, rows=32_768, width=96, hidden=512, labels=150)
COURSES = tuple(NgramTraining(seed=5 + number, dropped=(0.3, 0.5)[number % 2]) for number in range(5))


def build_model() -> nn.Module:
    """Five nets in one, 18 M parameters, nearly all of them n-gram vectors; trained once and cached.

    Raises ForgeError without data and cached weights.
    """
    whole = NgramEnsemble(SIZES, len(COURSES))
    path = _weights_path("clinc150", COURSES)
    if path.exists():
        whole.load_state_dict(safetensors.torch.load(path.read_bytes()))
        return whole.eval()
    for number, course in enumerate(COURSES):
        whole.take_member(number, _train_member(number, course))
    write_tensors(path, whole.state_dict())
    for number, course in enumerate(COURSES):
        _weights_path(f"clinc150-member-{number}", course).unlink(missing_ok=True)
    return whole.eval()


def _train_member(number: int, course: NgramTraining) -> NgramNet:
    """One trained member, kept until all are done: a killed training goes on with the next member."""
    path = _weights_path(f"clinc150-member-{number}", course)
    if path.exists():
        net = NgramNet(SIZES)
        net.load_state_dict(safetensors.torch.load(path.read_bytes()))
        return net
    part = load_clinc150().training
    with deterministic_torch(course.seed):
        torch.manual_seed(course.seed)
        net = NgramNet(SIZES)
        train_ngram_net(net, part.x[0], part.y, course, lambda done, loss: _print_progress(number, done, loss))
    write_tensors(path, net.state_dict())
    return net


def _weights_path(name: str, made_by: object) -> Path:
    return zoo_cache_folder() / f"{name}-{sha256(repr((SIZES, made_by)).encode()).hexdigest()[:12]}.safetensors"


def samples() -> Data:
    """Training, calibration and held-out texts, as `load_clinc150`."""
    return load_clinc150()


def augment() -> NgramDropout:
    """Random dropping of n-grams, for `--augment`."""
    return NgramDropout()


def _print_progress(number: int, done: int, loss: float) -> None:
    of = f"member {number + 1} of {len(COURSES)}"
    print(f"clinc150, {of}: epoch {done} of {COURSES[number].epochs}, loss {loss:.3f}", file=sys.stderr)


_FILE = "data_full.json.gz"


def load_clinc150() -> Data:
    """15,000 / 3,000 + 100 / 4,500 + 1,000 texts (Larson et al. 2019) as `[n, LENGTH]` int64; -1 = out of scope."""
    found: dict[str, list[list[str]]] = json.loads(gzip.decompress((find_dataset("clinc150") / _FILE).read_bytes()))
    labels = tuple(sorted({intent for _, intent in found["train"]}))
    return Data(
        training=_text_part(found["train"], labels),
        calibration=_text_part(found["val"] + found["oos_val"], labels),
        heldout=_text_part(found["test"] + found["oos_test"], labels),
        labels=labels,
    )


def _text_part(rows: list[list[str]], labels: tuple[str, ...]) -> DataPart:
    numbers = {label: index for index, label in enumerate(labels)}
    y: npt.NDArray[np.int64] = np.array([numbers.get(intent, OUT_OF_SCOPE) for _, intent in rows], np.int64)
    return DataPart((encode_texts([text for text, _ in rows]),), y)
