"""The inversion attack's networks: from the codes of one sample back to the sample, small enough for one thread.

Rule: they know shapes and nothing else of the model under attack: black box, no weights, no gradients of it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

Shape = tuple[int, ...]

_GLOBAL = 1024  # features of at most so many values also go through a global layer
_NARROW = 16
_FINE = 256  # cells of a grid


class ImageDecoder(nn.Module):
    """Inverse network from standardised codes `[n, ...]` per feature to images `[n, channels, height, width]`.

    As in He, Zhang, Lee (ACSAC 2019): convolutions at the codes' own grid, then doubling by sub-pixel convolutions (Shi
    et
    al. 2016). What it predicts is added to the mean image of the attacker's pairs.
    """

    def __init__(self, shapes: Sequence[Shape], mean: Tensor, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean)
        self._size = tuple(mean.shape[1:])
        self._grid = _finest_grid(shapes, self._size)
        fine = math.prod(self._grid) > _FINE  # fine codes are almost the image: a narrow network is enough
        width = min(width, _NARROW) if fine else width
        self.near = nn.ModuleList(nn.Conv2d(s[0], width, 3, padding=1) if _is_map(s) else nn.Identity() for s in shapes)
        self.far = nn.ModuleList(_global_layer(s, width, self._grid) for s in shapes)
        self.body = nn.Identity() if fine else nn.Sequential(ResidualBlock(width), ResidualBlock(width))
        self.rise = nn.Sequential()
        grid = self._grid
        while grid[0] * 2 <= self._size[0] + 1 and grid[1] * 2 <= self._size[1] + 1:
            narrow = max(_NARROW, width // 2)
            self.rise.append(nn.Sequential(nn.Conv2d(width, 4 * narrow, 3, padding=1), nn.PixelShuffle(2), nn.ReLU()))
            width, grid = narrow, (grid[0] * 2, grid[1] * 2)
        self.last = nn.Conv2d(width, mean.shape[0], 3, padding=1)

    def forward(self, *codes: Tensor) -> Tensor:
        seen = torch.zeros(())
        for x, near, far in zip(codes, self.near, self.far, strict=True):
            if isinstance(near, nn.Conv2d):
                seen = seen + functional.interpolate(near(x), self._grid)
            if isinstance(far, nn.Sequential):
                seen = seen + far(x)
        made = self.last(self.rise(self.body(functional.relu(seen))))
        if tuple(made.shape[2:]) != self._size:
            made = functional.interpolate(made, self._size, mode="bilinear")
        rebuilt: Tensor = self.mean + made
        return rebuilt


class ResidualBlock(nn.Module):
    """Two convolutions beside the identity (He et al. 2016)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.steps = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.steps(x))


class VectorDecoder(nn.Module):
    """Network from standardised codes to `[n, outputs]`.

    The sum of a linear map and two hidden layers, so that a plain copy is easy to learn.
    """

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.straight = nn.Linear(inputs, outputs)
        self.bent = nn.Sequential(
            nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width),
            nn.ReLU(), nn.Linear(width, outputs),
        )  # fmt: skip

    def forward(self, *codes: Tensor) -> Tensor:
        flat = torch.cat([x.flatten(1) for x in codes], 1)
        found: Tensor = self.straight(flat) + self.bent(flat)
        return found


def count_network_macs(net: nn.Module, example: Sequence[Tensor]) -> int:
    """Multiply-accumulates of a network for one sample, which decide how many steps a budget buys."""
    total = 0

    def count(layer: nn.Module, _: object, made: Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Conv2d):
            total += layer.weight[0].numel() * made[0].numel()
        elif isinstance(layer, nn.Linear):
            total += layer.weight.numel()

    hooks = [layer.register_forward_hook(count) for layer in net.modules()]
    with torch.no_grad():
        net.eval()(*(x[:1] for x in example))
    for hook in hooks:
        hook.remove()
    return total


def _is_map(shape: Shape) -> bool:
    return len(shape) == 3 and min(shape[1:]) > 1


def _finest_grid(shapes: Sequence[Shape], size: Shape) -> tuple[int, int]:
    """The finest grid of any feature, at most the image's own; a quarter of the image if none has a grid."""
    maps = [shape[1:] for shape in shapes if _is_map(shape)]
    finest = max(maps, key=math.prod) if maps else tuple(min(side, max(4, side // 4)) for side in size)
    return min(finest[0], size[0]), min(finest[1], size[1])


def _global_layer(shape: Shape, width: int, grid: tuple[int, int]) -> nn.Module:
    if _is_map(shape) and math.prod(shape) > _GLOBAL:
        return nn.Identity()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), width * math.prod(grid)), nn.Unflatten(1, (width, *grid))
    )
