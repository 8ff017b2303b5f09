"""Small untrained networks of common architectures, built from a seed, for tests of graph export."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Residual block of a ResNet."""

    def __init__(self, channels: int, wide: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide))
        self.second = nn.Sequential(nn.ReLU(), nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide))
        same = channels == wide and stride == 1
        self.skip = nn.Identity() if same else nn.Sequential(nn.Conv2d(channels, wide, 1, stride), nn.BatchNorm2d(wide))
        self.end = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(self.first(x))
        out += self.skip(x)
        return self.end(out)  # type: ignore[no-any-return]


def resnet() -> nn.Module:
    stem = [nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 10)]
    return nn.Sequential(*stem, Residual(8, 8, 1), Residual(8, 16, 2), *end)


def mobilenet() -> nn.Module:
    def depthwise(channels: int, wide: int, stride: int) -> nn.Module:
        deep = [nn.Conv2d(channels, channels, 3, stride, 1, groups=channels), nn.BatchNorm2d(channels), nn.ReLU6()]
        return nn.Sequential(*deep, nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), nn.Hardswish())

    stem = [nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(inplace=True), depthwise(8, 16, 1), depthwise(16, 16, 2)]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class VisionTransformer(nn.Module):
    def __init__(self, wide: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, wide, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, wide))
        self.places = nn.Parameter(torch.randn(1, 17, wide))
        layer = nn.TransformerEncoderLayer(wide, 4, 64, batch_first=True, norm_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(wide, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(x.shape[0], -1, -1), tokens], 1) + self.places
        return self.head(self.encoder(tokens)[:, 0])  # type: ignore[no-any-return]


class Text(nn.Module):
    """BERT classifier as `transformers` builds it, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415 - seconds

        config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
        config.intermediate_size, config.num_labels = 64, 5
        self.bert = BertForSequenceClassification(config)

    def forward(self, ids: Tensor) -> Tensor:
        return self.bert(input_ids=ids, attention_mask=(ids != 0).long()).logits  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.GRU] | type[nn.LSTM], both_ways: bool) -> None:
        super().__init__()
        self.cells = cell(6, 16, num_layers=2, batch_first=True, bidirectional=both_ways)
        self.head = nn.Linear(32 if both_ways else 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])  # type: ignore[no-any-return]


def signal() -> nn.Module:
    layers = [nn.Conv1d(1, 8, 5, 2, 2), nn.BatchNorm1d(8), nn.LeakyReLU(0.1), nn.MaxPool1d(2), nn.Conv1d(8, 16, 3)]
    return nn.Sequential(*layers, nn.ELU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 5))


class Table(nn.Module):
    """Network for tables: two category columns and eight numeric ones."""

    def __init__(self) -> None:
        super().__init__()
        self.names = nn.Embedding(20, 4)
        self.rest = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        named = self.names(x[:, :2].long().clamp(0, 19)).flatten(1)
        return self.rest(torch.cat([named, x[:, 2:]], 1))  # type: ignore[no-any-return]


class Widening(nn.Module):
    """Hub-side tail whose decoder enlarges codes in every usual way.

    Transposed convolution, upsampling, pixel shuffle.
    """

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.ConvTranspose2d(2, 8, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Upsample(size=20)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(8, 16, 3), nn.PixelShuffle(2), nn.GroupNorm(2, 4), nn.Sigmoid())
        self.head = nn.Linear(4, 10)

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.layers(codes / 15 - 0.5).mean((2, 3)))  # type: ignore[no-any-return]


class Net(NamedTuple):
    """How to build a network, and the shape of one sample."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    whole: bool = False  # int64

    def module(self) -> nn.Module:
        """The network in evaluation mode, with weights and statistics of a fixed seed."""
        torch.manual_seed(11)
        module = self.build().eval()
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):  # as after some training
                nn.init.uniform_(layer.running_mean, -0.5, 0.5)  # type: ignore[arg-type]
                nn.init.uniform_(layer.running_var, 0.5, 2.0)  # type: ignore[arg-type]
        return module

    def samples(self, count: int) -> Tensor:
        chance = torch.Generator().manual_seed(count)
        if self.whole:
            return torch.randint(0, 90, (count, *self.shape), generator=chance)
        return torch.rand((count, *self.shape), generator=chance)


NETS = {
    "resnet": Net(resnet, (3, 16, 16)),
    "mobilenet": Net(mobilenet, (3, 16, 16)),
    "vision transformer": Net(VisionTransformer, (3, 16, 16)),
    "text": Net(Text, (12,), whole=True),
    "gru": Net(lambda: Recurrent(nn.GRU, both_ways=False), (9, 6)),
    "lstm": Net(lambda: Recurrent(nn.LSTM, both_ways=True), (9, 6)),
    "signal": Net(signal, (1, 40)),
    "table": Net(Table, (10,)),
    "widening": Net(Widening, (2, 4, 4)),
}
