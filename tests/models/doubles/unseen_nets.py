"""Small networks of plain torch of architectures that no other test has, as users bring them.

Rule: random weights, no training, no data files. `UNSEEN[name]` is used as `ARCHITECTURES[name]` of `nets`. Written
after the papers in their plainest form: SqueezeNet (arXiv 1602.07360), DenseNet (arXiv 1608.06993), ShuffleNet V2
(arXiv 1807.11164), attention in windows (Swin, arXiv 2103.14030).
"""

import warnings

import torch
from torch import Tensor, nn
from torch.nn.functional import relu
from torch.nn.utils import parametrizations

from tests.models.doubles.nets import Architecture


class _Fire(nn.Module):
    """SqueezeNet's module: squeeze to few channels, expand by 1x1 and 3x3 side by side."""

    def __init__(self, inputs: int, few: int, wide: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, few, 1)
        self.one, self.three = nn.Conv2d(few, wide, 1), nn.Conv2d(few, wide, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.squeeze(x), inplace=True)
        return torch.cat([relu(self.one(y), inplace=True), relu(self.three(y), inplace=True)], 1)


class SqueezeNet(nn.Module):
    def __init__(self, labels: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True)),
            *(_Fire(16, 8, 16), _Fire(32, 8, 16), nn.MaxPool2d(3, 2, ceil_mode=True), _Fire(32, 12, 24)),
        )
        self.last = nn.Sequential(
            nn.Dropout(), nn.Conv2d(48, labels, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.last(self.body(x)), 1)


class _DenseLayer(nn.Module):
    """DenseNet's layer: sees everything before it, adds a few channels."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), nn.Conv2d(inputs, 2 * growth, 1, bias=False)),
            *(nn.BatchNorm2d(2 * growth), nn.ReLU(inplace=True), nn.Conv2d(2 * growth, growth, 3, 1, 1, bias=False)),
        )

    def forward(self, parts: list[Tensor]) -> Tensor:
        y: Tensor = self.layers(torch.cat(parts, 1))
        return y


class _DenseBlock(nn.Module):
    def __init__(self, inputs: int, growth: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_DenseLayer(inputs + at * growth, growth) for at in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for layer in self.layers:
            parts.append(layer(parts))
        return torch.cat(parts, 1)


class DenseNet(nn.Module):
    def __init__(self, growth: int = 8, labels: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.first, self.second = _DenseBlock(16, growth, 3), _DenseBlock(20, growth, 3)
        self.between = nn.Sequential(nn.BatchNorm2d(40), nn.ReLU(inplace=True), nn.Conv2d(40, 20, 1), nn.AvgPool2d(2))
        self.last = nn.Sequential(
            nn.BatchNorm2d(44), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(44, labels)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.second(self.between(self.first(self.stem(x)))))
        return y


def _shuffle(x: Tensor, groups: int = 2) -> Tensor:
    """Mix the channels of two groups, as the paper's reference code does it: view, transpose, view."""
    count, channels, height, width = x.shape
    return x.view(count, groups, channels // groups, height, width).transpose(1, 2).contiguous().view(x.shape)


def _depthwise(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs)),
        *(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)),
    )


class _ShuffleUnit(nn.Module):
    """ShuffleNet V2's unit: split the channels, work on one half, join, shuffle; with a stride both halves work."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.stride = stride
        self.left = _depthwise(inputs, half, stride) if stride > 1 else nn.Identity()
        first = inputs if stride > 1 else half
        entry = nn.Sequential(nn.Conv2d(first, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True))
        self.right = nn.Sequential(entry, _depthwise(half, half, stride))

    def forward(self, x: Tensor) -> Tensor:
        left, right = (x, x) if self.stride > 1 else x.chunk(2, dim=1)
        return _shuffle(torch.cat([self.left(left), self.right(right)], 1))


class ShuffleNet(nn.Module):
    def __init__(self, width: int = 24, labels: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True))
        self.body = nn.Sequential(
            *(_ShuffleUnit(12, width, 2), _ShuffleUnit(width, width, 1)),
            *(_ShuffleUnit(width, 2 * width, 2), _ShuffleUnit(2 * width, 2 * width, 1)),
        )
        self.last = nn.Linear(2 * width, labels)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.body(self.stem(x)).mean([2, 3]))
        return y


class ConvLstm(nn.Module):
    """Convolutions over a signal, then an LSTM in both directions, as speech and activity models have them."""

    def __init__(self, labels: int = 6) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(6, 16, 5, 2, 2), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2))
        self.body = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.last = nn.Linear(32, labels)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.body(self.front(x).transpose(1, 2))
        out: Tensor = self.last(y.mean(1))
        return out


class NormalisedConv(nn.Module):
    """Convolutions with weight normalisation, the new way and the old one, as Wav2Vec2 and its kind have it."""

    def __init__(self, labels: int = 4) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Conv1d(2, 8, 5, padding=2), dim=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the old way is deprecated, and still in use
            self.second = nn.utils.weight_norm(nn.Conv1d(8, 8, 3, padding=1))
        self.last = parametrizations.orthogonal(nn.Linear(8, labels))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        out: Tensor = self.last(y.mean(2))
        return out


class WindowAttention(nn.Module):
    """Attention within windows of a picture with a learned bias for each pair of places, as Swin has it."""

    def __init__(self, width: int = 8, labels: int = 4) -> None:
        super().__init__()
        self.patches, self.mixed = nn.Conv2d(3, width, 2, 2), nn.Linear(width, 3 * width)
        self.bias, self.join = nn.Parameter(torch.randn(2, 4, 4)), nn.Linear(width, width)
        self.last = nn.Linear(width, labels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x)
        count, width, height, across = y.shape
        windows = y.view(count, width, height // 2, 2, across // 2, 2).permute(0, 2, 4, 3, 5, 1)
        tokens = windows.reshape(-1, 4, width)
        query, key, value = (one.view(-1, 4, 2, width // 2).transpose(1, 2) for one in self.mixed(tokens).chunk(3, -1))
        answer = nn.functional.scaled_dot_product_attention(query, key, value, self.bias[None])
        joined = self.join(answer.transpose(1, 2).reshape(tokens.shape[0], 4, -1))
        out: Tensor = self.last(joined.reshape(count, -1, width).mean(1))
        return out


def _pictures(n: int) -> tuple[Tensor, ...]:
    return (torch.rand(n, 3, 32, 32),)


UNSEEN: dict[str, Architecture] = {
    "squeezenet": Architecture(SqueezeNet, _pictures),
    "densenet": Architecture(DenseNet, _pictures),
    "shufflenet": Architecture(ShuffleNet, _pictures),
    "window_attention": Architecture(WindowAttention, lambda n: (torch.rand(n, 3, 16, 16),)),
    "normalised_conv": Architecture(NormalisedConv, lambda n: (torch.randn(n, 2, 40),)),
    "conv_lstm": Architecture(ConvLstm, lambda n: (torch.randn(n, 6, 64),)),
}
