"""Small networks of eleven architectures, as users bring them, for tests of the forge's tracing and splitting.

Rule: random weights, no training, no data files. `ARCHITECTURES[name]` says how to build the model and how to draw
inputs for it; a model with several inputs takes them in this order.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from models.forge.data.packing import PackedInputs, pack_inputs
from models.forge.data.types import Data, DataPart
from models.forge.partition.cuts import TracedModel, trace_model

Inputs = tuple[Tensor, ...]


class Architecture(NamedTuple):
    build: Callable[[], nn.Module]
    draw: Callable[[int], Inputs]  # how many samples -> one tensor `[n, ...]` per input

    @property
    def inputs(self) -> int:
        return len(self.draw(1))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first, self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.second, self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.two(self.second(relu(self.one(self.first(x))))) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, width: int = 8, labels: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.body = nn.Sequential(_Block(width, width), _Block(width, 2 * width, 2), _Block(2 * width, 4 * width, 2))
        self.last = nn.Linear(4 * width, labels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.body(self.stem(x)).mean((2, 3)))
        return out


class _Inverted(nn.Module):
    """Inverted residual block (MobileNet): expand, filter each channel, project.

    Skip connection where the shape stays.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = 4 * inputs
        self.layers = nn.Sequential(
            *(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.short = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.short else y


class MobileNet(nn.Module):
    def __init__(self, width: int = 8, labels: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.Hardswish())
        shapes = ((1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2))
        self.body = nn.Sequential(*(_Inverted(a * width, b * width, stride) for a, b, stride in shapes))
        self.last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * width, labels))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.body(self.stem(x)))
        return out


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 32, depth: int = 2, labels: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, norm_first=True, activation="gelu")
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, labels)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1) + self.place
        out: Tensor = self.last(self.norm(self.body(tokens)[:, 0]))
        return out


class Bert(nn.Module):
    """BERT from a `transformers` configuration; `masked`: the attention mask is a second input."""

    def __init__(self, labels: int = 5, *, masked: bool = False) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415  a development extra

        shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        shape |= {"vocab_size": 200, "intermediate_size": 64, "max_position_embeddings": 32, "num_labels": labels}
        config = BertConfig(**shape)
        self.inner, self.masked = BertForSequenceClassification(config), masked

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        out: Tensor = self.inner(input_ids=tokens, attention_mask=mask).logits
        return out


class MaskedText(nn.Module):
    """A small text encoder of torch's own parts with an attention mask as its second input."""

    def __init__(self, width: int = 16, labels: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(width, labels)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        kept = mask.unsqueeze(-1).float()
        y = self.body(self.embed(tokens), src_key_padding_mask=mask == 0)
        out: Tensor = self.last((y * kept).sum(1) / kept.sum(1))
        return out


class Gru(nn.Module):
    def __init__(self, width: int = 24, labels: int = 6) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(9, width), nn.GRU(width, width, 2, batch_first=True)
        self.last = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, labels))

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.body(torch.tanh(self.first(x)))
        out: Tensor = self.last(y[:, -1])
        return out


class Cnn1d(nn.Module):
    def __init__(self, labels: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv1d(1, 16, 7, 2, 3), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2)),
            *(nn.Conv1d(16, 32, 5, 1, 2), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2)),
            *(nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, labels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


class EmbeddingMlp(nn.Module):
    """Network for tables of eight category columns, each in 0..19, embedded and mixed."""

    def __init__(self, labels: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(20 * 8, 8)
        self.register_buffer("offsets", torch.arange(8) * 20)
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, labels))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.embed(x + self.get_buffer("offsets")).flatten(1))
        return out


class TwoInputs(nn.Module):
    """Network with two inputs, category columns and measured values, joined late."""

    def __init__(self, labels: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 4)
        self.left, self.right = nn.Linear(12, 16), nn.Sequential(nn.Linear(10, 16), nn.ReLU())
        self.body = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, labels))

    def forward(self, columns: Tensor, values: Tensor) -> Tensor:
        left = relu(self.left(self.embed(columns).flatten(1)))
        out: Tensor = self.body(torch.cat([left, self.right(values.flatten(1))], 1))
        return out


class TwoTowers(nn.Module):
    """Network with two branches up to the last layer: no single tensor carries everything before it."""

    def __init__(self, labels: int = 4) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU())
        self.coarse = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh())
        self.last = nn.Linear(18, labels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.cat([self.fine(x), self.coarse(x)], 1))
        return out


def _pictures(n: int) -> Inputs:
    return (torch.rand(n, 3, 32, 32),)


def _masked(vocabulary: int) -> Callable[[int], Inputs]:
    def draw(n: int) -> Inputs:
        kept = torch.arange(12)[None] < torch.randint(4, 13, (n, 1))
        return torch.randint(1, vocabulary, (n, 12)), kept.long()

    return draw


ARCHITECTURES: dict[str, Architecture] = {
    "resnet": Architecture(ResNet, _pictures),
    "mobilenet": Architecture(MobileNet, _pictures),
    "vit": Architecture(VisionTransformer, _pictures),
    "bert": Architecture(Bert, lambda n: (torch.randint(1, 200, (n, 12)),)),
    "bert_masked": Architecture(lambda: Bert(masked=True), _masked(200)),
    "masked_text": Architecture(MaskedText, _masked(100)),
    "gru": Architecture(Gru, lambda n: (torch.randn(n, 20, 9),)),
    "cnn1d": Architecture(Cnn1d, lambda n: (torch.randn(n, 1, 128),)),
    "embedding_mlp": Architecture(EmbeddingMlp, lambda n: (torch.randint(0, 20, (n, 8)),)),
    "two_inputs": Architecture(TwoInputs, lambda n: (torch.randint(0, 50, (n, 3)), torch.randn(n, 2, 5))),
    "two_towers": Architecture(TwoTowers, lambda n: (torch.randn(n, 16),)),
}
NEEDS_TRANSFORMERS = frozenset({"bert", "bert_masked"})


def built(name: str, seed: int = 0) -> nn.Module:
    """One of `ARCHITECTURES` with weights of a fixed seed, in evaluation mode; skips without `transformers`."""
    import pytest  # noqa: PLC0415  so that benchmarks may import this file without pytest

    if name in NEEDS_TRANSFORMERS:
        pytest.importorskip("transformers")
    torch.manual_seed(seed)
    return ARCHITECTURES[name].build().eval()


def packed(name: str, count: int = 40) -> PackedInputs:
    """One of `ARCHITECTURES` with one input, as the forge prepares it.

    Data are drawn and labelled by the model itself.
    """
    model = built(name)
    inputs = ARCHITECTURES[name].draw(count)
    with torch.no_grad():
        answers = model(*inputs)
    part = DataPart(tuple(one.numpy() for one in inputs), answers.argmax(1).numpy())
    return pack_inputs(model, Data(part, part, part, tuple(f"label {i}" for i in range(answers.shape[1]))))


@cache
def traced(name: str) -> TracedModel:
    """One of `ARCHITECTURES` traced, once for all tests of a process."""
    model, data, _ = packed(name)
    return trace_model(model, torch.from_numpy(data.training.x[0][:2]))
