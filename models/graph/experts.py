"""Layers of transformers that choose among experts, traced as products over all experts.

transformers computes such a layer by sorting tokens by their expert, in kernels of its own, or one expert after
another. Neither is a graph of fixed shapes. Here every expert computes every token, and a token's answer is the sum of
its chosen experts' by their shares: the same numbers up to rounding, for as many times the work as there are experts to
one that is chosen. The product over the axis of the experts is one that ranks can divide.

Rule: transformers is never imported here; a module of it brings it along.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_NAME = "every_expert"


@contextmanager
def compute_every_expert(module: nn.Module) -> Iterator[None]:
    """While a module is traced below this, its layers of transformers with experts compute all of them."""
    library: Any = sys.modules.get("transformers.integrations.moe")
    found: dict[int, Any] = {id(each): each for part in module.modules() if (each := getattr(part, "config", None))}
    configurations = [each for each in found.values() if getattr(each, "_experts_implementation", None) is not None]
    if library is None or not configurations:
        yield
        return
    library.ALL_EXPERTS_FUNCTIONS.register(_NAME, run_every_expert)
    former = [each._experts_implementation for each in configurations]  # noqa: SLF001 - where transformers looks
    for each in configurations:
        each._experts_implementation = _NAME  # noqa: SLF001
    try:
        yield
    finally:
        for each, name in zip(configurations, former, strict=True):
            each._experts_implementation = name  # noqa: SLF001


def run_every_expert(layer: Any, tokens: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    """Compute a layer of experts: `tokens` `[n, width]`, the experts `chosen` for each and their `shares`, `[n, k]`."""
    made = tokens.unsqueeze(0).expand(layer.num_experts, -1, -1)
    if layer.has_gate:
        made = layer._apply_gate(_multiply(layer, made, "gate_up_proj"))  # noqa: SLF001 - a layer may have its own
    else:
        made = layer.act_fn(_multiply(layer, made, "up_proj"))
    made = _multiply(layer, made, "down_proj")
    if layer.has_post_expert_norm:
        made = layer.post_expert_norm(made)
    is_chosen = chosen.unsqueeze(-1) == torch.arange(layer.num_experts, device=chosen.device)
    by_expert = (shares.unsqueeze(-1) * is_chosen).sum(1).t().unsqueeze(-1)
    weighed = (made * by_expert).masked_fill(by_expert == 0, 0)  # an expert that was not chosen may overflow
    return weighed.sum(0).to(tokens.dtype)


def _multiply(layer: Any, x: Tensor, name: str) -> Tensor:
    """Multiply `[experts, n, inputs]` by the weights of every expert."""
    weight: Tensor = getattr(layer, name)
    made = torch.bmm(x, weight) if layer.is_transposed else torch.bmm(weight, x.transpose(1, 2)).transpose(1, 2)
    return made + getattr(layer, f"{name}_bias").unsqueeze(1) if layer.has_bias else made
