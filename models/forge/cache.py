"""Content-addressed cache of finished forge stages, and training checkpoints as safetensors files.

Rule: a stage is found only under the digest of all that decides its result; files are plain bytes with their SHA-256,
so that a half-written or altered result counts as absent. Nothing here is ever unpickled.

Rule: a checkpoint (modules, optimiser, epochs done) is written beside and renamed, so a killed process leaves the last
whole state.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

INDEX = "index.json"
LIMIT_BYTES = 4 << 30  # above this the oldest results are removed
_KEY_CHARS = 24
_OWN_NAME = re.compile(rf"[a-z][a-z-]*-[0-9a-f]{{{_KEY_CHARS}}}|\.new-.*")

Files = dict[str, bytes]


def digest_parts(*parts: Any) -> str:
    """SHA-256 in hex over values: bytes as they are, everything else as canonical JSON, each with its length.

    A memoryview of bytes counts as the bytes, which are not copied.
    """
    whole = sha256()
    for part in parts:
        plain = isinstance(part, (bytes, memoryview))
        data = part if plain else json.dumps(part, sort_keys=True, default=str).encode()
        whole.update(bytes([plain]) + len(data).to_bytes(8, "big"))
        whole.update(data)
    return whole.hexdigest()


class StageCache:
    """Folder of finished stages and of checkpoints in progress, limited in bytes.

    `root` None: a temporary folder that is removed at the end of the run. Above `limit_bytes` the stages that were used
    longest ago are removed; what else lies in the folder is left alone.
    """

    def __init__(self, root: Path | None, limit_bytes: int = LIMIT_BYTES) -> None:
        self._own = tempfile.TemporaryDirectory(prefix="skerry-forge-") if root is None else None
        self.root = Path(self._own.name) if self._own else Path(str(root))
        self._limit_bytes = limit_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._own.cleanup()

    def find_stage(self, stage: str, key: str) -> Files | None:
        """Files of a finished stage, or None if it is missing, incomplete or altered."""
        folder = self._stage_folder(stage, key)
        try:
            index = json.loads((folder / INDEX).read_bytes())
            files = {name: (folder / name).read_bytes() for name in index}
        except (OSError, ValueError, TypeError):
            return None
        if any(sha256(data).hexdigest() != index[name] for name, data in files.items()):
            return None
        os.utime(folder)
        return files

    def store_stage(self, stage: str, key: str, files: Mapping[str, bytes]) -> None:
        """Store the files of a finished stage as one step: a killed process leaves it absent, never half written."""
        folder = self._stage_folder(stage, key)
        self.root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            for name, data in files.items():
                (scratch / name).write_bytes(data)
            index = {name: sha256(data).hexdigest() for name, data in files.items()}
            (scratch / INDEX).write_text(json.dumps(index))
            shutil.rmtree(folder, ignore_errors=True)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._evict_oldest(folder)

    def scratch_folder(self, stage: str, key: str) -> Path:
        """Folder for the checkpoints of a stage in progress; kept for the next run, and evicted as results are."""
        folder = self.root / f"work-{stage}-{key[:_KEY_CHARS]}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _stage_folder(self, stage: str, key: str) -> Path:
        return self.root / f"{stage}-{key[:_KEY_CHARS]}"

    def _evict_oldest(self, newest: Path) -> None:
        """Remove folders in order of last use, oldest first, until the rest fits the limit."""
        own = [path for path in self.root.iterdir() if _OWN_NAME.fullmatch(path.name) and path.is_dir()]
        sizes = {path: _folder_bytes(path) for path in own if path != newest}
        left = sum(sizes.values()) + _folder_bytes(newest)
        for path in sorted(sizes, key=_last_used):
            if left <= self._limit_bytes:
                return
            shutil.rmtree(path, ignore_errors=True)
            left -= sizes[path]


def _folder_bytes(folder: Path) -> int:
    return sum(_file_bytes(path) for path in folder.rglob("*"))


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # another process removed it meanwhile
        return 0


def _last_used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


_EPOCH = "epoch"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically: the new content or the old one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    # safetensors refuses tensors that share memory, and exported graphs may name one weight twice
    fresh.write_bytes(
        safetensors.torch.save({name: value.detach().clone().contiguous() for name, value in tensors.items()})
    )
    fresh.replace(path)


def save_checkpoint(path: Path, modules: nn.ModuleDict, optimiser: torch.optim.Optimizer | None, epoch: int) -> None:
    """Save modules, optimiser state and the number of epochs done.

    `optimiser` None: the training has ended, nothing needs its moments any more.
    """
    named = {f"model.{key}": value for key, value in modules.state_dict().items()}
    if optimiser is not None:
        for number, parameter in enumerate(_list_parameters(optimiser)):
            state = optimiser.state.get(parameter, {})
            named |= {f"optimiser.{number}.{key}": torch.as_tensor(value) for key, value in state.items()}
    named[_EPOCH] = torch.tensor(epoch)
    write_tensors(path, named)


def load_checkpoint(path: Path, modules: nn.ModuleDict, optimiser: torch.optim.Optimizer | None) -> int:
    """Load a checkpoint into modules and optimiser; returns the epochs done.

    Returns 0, and changes nothing, if there is no file or its modules do not fit.
    """
    try:
        named = safetensors.torch.load(path.read_bytes())
        epoch = int(named.pop(_EPOCH))
        modules.load_state_dict({key[6:]: value for key, value in named.items() if key.startswith("model.")})
    except (OSError, KeyError, RuntimeError, SafetensorError):
        return 0
    for number, parameter in enumerate(_list_parameters(optimiser) if optimiser is not None else []):
        prefix = f"optimiser.{number}."
        state = {key.removeprefix(prefix): value for key, value in named.items() if key.startswith(prefix)}
        if state and optimiser is not None:
            optimiser.state[parameter] = state
    return epoch


def _list_parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]
