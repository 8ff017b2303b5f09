"""A training's state on disk: modules, optimiser and the epoch reached, as one safetensors file.

Law: written beside and renamed, so a killed process leaves the last whole state; never unpickled.
"""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

_EPOCH = "epoch"


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """All at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    # safetensors refuses tensors that share memory, and exported graphs may name one weight twice
    fresh.write_bytes(
        safetensors.torch.save({name: value.detach().clone().contiguous() for name, value in tensors.items()})
    )
    fresh.replace(path)


def keep(path: Path, modules: nn.ModuleDict, optimiser: torch.optim.Optimizer | None, epoch: int) -> None:
    """`optimiser` None: the training has ended, nothing needs its moments any more."""
    named = {f"model.{key}": value for key, value in modules.state_dict().items()}
    if optimiser is not None:
        for number, parameter in enumerate(_parameters(optimiser)):
            state = optimiser.state.get(parameter, {})
            named |= {f"optimiser.{number}.{key}": torch.as_tensor(value) for key, value in state.items()}
    named[_EPOCH] = torch.tensor(epoch)
    write(path, named)


def resume(path: Path, modules: nn.ModuleDict, optimiser: torch.optim.Optimizer | None) -> int:
    """Epochs done; 0, and nothing changed, if there is no state that fits."""
    try:
        named = safetensors.torch.load(path.read_bytes())
        epoch = int(named.pop(_EPOCH))
        modules.load_state_dict({key[6:]: value for key, value in named.items() if key.startswith("model.")})
    except (OSError, KeyError, RuntimeError, SafetensorError):
        return 0
    for number, parameter in enumerate(_parameters(optimiser) if optimiser is not None else []):
        prefix = f"optimiser.{number}."
        state = {key.removeprefix(prefix): value for key, value in named.items() if key.startswith(prefix)}
        if state and optimiser is not None:
            optimiser.state[parameter] = state
    return epoch


def _parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]
