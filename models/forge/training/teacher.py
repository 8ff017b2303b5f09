"""Teacher answers: outputs of the given model for augmented copies of the training samples, computed once and cached.

Rule: a copy follows from the seed and its number alone, so an answer kept on disk belongs to exactly one sample.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from models.forge.cache import write_tensors

AugmentFunction = Callable[[Tensor, torch.Generator], Tensor]
_CHUNK = 500


class AugmentedCopy(NamedTuple):
    """One copy of the training set. `x`: augmented samples.

    `answers`: the given model's outputs `[n, outputs]`, float32.
    """

    x: Tensor
    answers: Tensor


class ExecutionMode(NamedTuple):
    """Arithmetic of a model while it learns: bfloat16 where the machine is quick at it, channels last for images."""

    bf16: bool
    channels_last: bool

    def arrange(self, x: Tensor) -> Tensor:
        """The samples in this memory format."""
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x

    def autocast(self) -> torch.autocast:
        """Autocast context of this arithmetic."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.bf16)


class TeacherAnswers:
    """Computes the teacher's answers to one copy at a time; keeps the answers in `folder`, the samples nowhere."""

    def __init__(
        self, teacher: nn.Module, x: npt.NDArray[Any], augment: AugmentFunction | None, seed: int, folder: Path | None
    ) -> None:
        self._teacher, self._augment, self._seed, self._folder = teacher, augment, seed, folder
        self._x = torch.from_numpy(np.ascontiguousarray(x))
        self._speed = choose_execution(teacher, self._x[:2])
        self._latest: tuple[int, AugmentedCopy] | None = None
        self._kept: dict[int, Tensor] = {}

    def load_copy(self, number: int) -> AugmentedCopy:
        """Copy `number` of the training set; copy 0 of unaugmented data is the set itself."""
        if self._augment is None:
            number = 0
        if self._latest is None or self._latest[0] != number:
            self._latest = None  # one copy at a time in memory
            x = self._x if self._augment is None else torch.cat(list(self._augment_chunks(number)))
            self._latest = (number, AugmentedCopy(x, self._load_answers(number, x)))
        return self._latest[1]

    def _augment_chunks(self, number: int) -> Iterator[Tensor]:
        assert self._augment is not None
        for start in range(0, len(self._x), _CHUNK):
            chance = torch.Generator().manual_seed((self._seed * 1009 + number) * 1_000_003 + start)
            yield self._augment(self._x[start : start + _CHUNK], chance)

    def _load_answers(self, number: int, x: Tensor) -> Tensor:
        if number in self._kept:
            return self._kept[number]
        path = self._folder / f"answers-{number}.safetensors" if self._folder else None
        found = _read_answers(path, len(x)) if path else None
        if found is None:
            found = predict_batches(self._teacher, x, self._speed)
            if path:
                write_tensors(path, {"answers": found})
        self._kept[number] = found
        return found


def predict_batches(model: nn.Module, x: Tensor | npt.NDArray[Any], speed: ExecutionMode | None = None) -> Tensor:
    """The model's (first) outputs for all of `x`, float32, `[n, outputs]`; float32 arithmetic without a `speed`."""
    samples = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    way = speed or ExecutionMode(bf16=False, channels_last=False)
    found = []
    with torch.inference_mode(), way.autocast():
        for start in range(0, len(samples), _CHUNK):
            out = model(way.arrange(samples[start : start + _CHUNK]))
            out = out[0] if isinstance(out, (tuple, list)) else out
            found.append(out.float().reshape(len(out), -1))
    return torch.cat(found).clone()


def choose_execution(model: nn.Module, example: Tensor) -> ExecutionMode:
    """bfloat16 and channels last for images if the machine and this model can; else float32 as they are."""
    if example.dim() != 4 or not has_fast_bf16():
        return ExecutionMode(bf16=False, channels_last=False)
    speed = ExecutionMode(bf16=True, channels_last=True)
    try:
        predict_batches(model, example, speed)
    except RuntimeError:  # a graph with fixed memory layout or types
        return ExecutionMode(bf16=False, channels_last=False)
    return speed


def _read_answers(path: Path, count: int) -> Tensor | None:
    try:
        found = safetensors.torch.load(path.read_bytes())["answers"]
    except (OSError, KeyError, SafetensorError):
        return None
    return found if len(found) == count else None


def has_fast_bf16() -> bool:
    """Whether this machine's processor has instructions for bfloat16."""
    capabilities = torch.cpu.get_capabilities()
    return any(bool(capabilities.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16"))
