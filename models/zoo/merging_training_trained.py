"""The zoo's large nets with their weights: from the cache if somebody has trained them here, else trained now.

Law: a cached file belongs to one net, one course and one data set, by its name; a killed training goes on. Training
says how long it still takes.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, Self

import safetensors.torch
import torch
from torch import nn

from models.forge.data.types import Data, Part
from models.forge.merging_cache_checkpoint import write
from models.zoo.merging_training_course import Tick

_START_SEED = 1
CACHE = "SKERRY_ZOO_CACHE"


class TrainingCourse(Protocol):
    """A NamedTuple that names every choice of a training, and the training itself."""

    @property
    def epochs(self) -> int: ...

    def train(self, model: nn.Module, part: Part, checkpoint: Path, tick: Tick) -> None: ...

    def _replace(self, *, threads: int) -> Self: ...


TrainingCourses = Sequence[TrainingCourse]


def trained(name: str, make: Callable[[], nn.Module], courses: TrainingCourses, data: Callable[[], Data]) -> nn.Module:
    """`make()` with the weights that `courses`, one after another, give it on the training part of `data()`."""
    torch.manual_seed(_START_SEED)
    model = make()
    done = len(courses)
    while done and not _load(model, _path(name, model, courses[:done])):
        done -= 1
    for number in range(done, len(courses)):
        path = _path(name, model, courses[: number + 1])
        clock = _Clock(f"{name}, part {number + 1} of {len(courses)}", courses[number].epochs)
        courses[number].train(model, data().training, path.with_suffix(".part"), clock)
        write(path, model.state_dict())
    return model.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload, no-any-return]


def _path(name: str, model: nn.Module, courses: TrainingCourses) -> Path:
    return folder() / f"{name}-{_digest(model, courses)}.safetensors"


def _load(model: nn.Module, path: Path) -> bool:
    if not path.exists():
        return False
    model.load_state_dict(safetensors.torch.load(path.read_bytes()))
    return True


def folder() -> Path:
    """Where trained nets lie: the folder that `SKERRY_ZOO_CACHE` names, or the user's cache."""
    named = os.environ.get(CACHE)
    return Path(named) if named else Path.home() / ".cache" / "skerry" / "zoo"


def _digest(model: nn.Module, courses: TrainingCourses) -> str:
    """Threads only decide how long it takes (and the last bits of sums)."""
    facts: list[Any] = [(key, tuple(value.shape)) for key, value in model.state_dict().items()]
    return sha256(repr((facts, [course._replace(threads=0) for course in courses])).encode()).hexdigest()[:12]


class _Clock:
    """Tells on standard error how far a training is and how long it still takes."""

    def __init__(self, name: str, epochs: int) -> None:
        self._name, self._epochs = name, epochs
        self._start, self._first = time.monotonic(), 0

    def __call__(self, done: int, loss: float) -> None:
        self._first = self._first or done
        each_s = (time.monotonic() - self._start) / (done - self._first + 1)
        left_s = each_s * (self._epochs - done)
        print(
            f"{self._name}: epoch {done} of {self._epochs}, loss {loss:.3f}, about {left_s / 60:.0f} min left",
            file=sys.stderr,
        )
