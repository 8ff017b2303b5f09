"""Benchmark: the edge graph in every precision: time, size, memory and accuracy of seven architectures.

`python -m benchmarks.forge.parts.quantisation`. Each net is trained for some seconds on a task drawn from a fixed seed
(samples near one of its classes' random patterns, or tables whose columns vote), so that accuracy means something; the
score is taken on 1,000 samples it has not seen, the ranges of activations on 256 others. About three minutes.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import Tensor, nn

from benchmarks.harness.figures import Figure, format_line
from models.forge.export.onnx import export_module, strip_metadata
from models.forge.export.quantise import (
    NOISE,
    PrecisionCandidate,
    PrecisionChoice,
    build_candidates,
    choose_precision,
    run_graph,
)
from models.forge.export.targets import Precision, local_profile
from tests.models.doubles import nets

Values = npt.NDArray[Any]
BIG_BYTES = 1 << 20
MAX_SIZE, MAX_LOSS_POINTS = 0.35, 0.5
_SHOWN, _TESTED = 256, 1000
_BATCH = 64
_LEVELS = 15
_KINDS = frozenset({"resnet", "mobilenet", "cnn1d", "embedding_mlp"})  # convolution and linear


class QuantisationCase(NamedTuple):
    """A net and its task. `kind`: which of the seven architectures; `steps` of training."""

    name: str
    kind: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    labels: int
    tokens: int  # vocabulary of whole-number samples; 0: samples are floats
    steps: int
    rate: float = 2e-3


class QuantisationTask(NamedTuple):
    shown: Values
    x: Values
    y: npt.NDArray[np.int64]


class QuantisationRow(NamedTuple):
    case: QuantisationCase
    choice: PrecisionChoice
    task: QuantisationTask


def _wide_table() -> nn.Module:
    net = nets.EmbeddingMlp()
    net.body = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 3))
    return net


def _wide_signal() -> nn.Module:
    net = nets.Cnn1d()
    net.body = nn.Sequential(
        *(nn.Conv1d(1, 64, 7, 2, 3), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(64, 256, 5, 1, 2), nn.BatchNorm1d(256), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(256, 256, 5, 1, 2), nn.BatchNorm1d(256), nn.ReLU(), nn.AdaptiveAvgPool1d(4)),
        *(nn.Flatten(), nn.Linear(1024, 4)),
    )
    return net


def _wide_bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415  a development extra

    shape: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    shape |= {"intermediate_size": 256, "vocab_size": 200, "max_position_embeddings": 32, "num_labels": 5}
    net = nets.Bert()
    net.inner = BertForSequenceClassification(BertConfig(**shape))
    return net


_PICTURE, _SIGNAL, _SERIES = (3, 32, 32), (1, 128), (20, 9)
CASES = (
    QuantisationCase("resnet", "resnet", nets.ResNet, _PICTURE, 10, 0, 150),
    QuantisationCase("resnet, wide", "resnet", lambda: nets.ResNet(32), _PICTURE, 10, 0, 60),
    QuantisationCase("mobilenet", "mobilenet", nets.MobileNet, _PICTURE, 10, 0, 200),
    QuantisationCase("mobilenet, wide", "mobilenet", lambda: nets.MobileNet(56), _PICTURE, 10, 0, 100),
    QuantisationCase("vit", "vit", nets.VisionTransformer, _PICTURE, 10, 0, 200),
    QuantisationCase("vit, wide", "vit", lambda: nets.VisionTransformer(128, 4), _PICTURE, 10, 0, 150, 5e-4),
    QuantisationCase("bert", "bert", nets.Bert, (12,), 5, 200, 400),
    QuantisationCase("bert, wide", "bert", _wide_bert, (12,), 5, 200, 250, 3e-4),
    QuantisationCase("gru", "gru", nets.Gru, _SERIES, 6, 0, 200),
    QuantisationCase("gru, wide", "gru", lambda: nets.Gru(192), _SERIES, 6, 0, 100),
    QuantisationCase("cnn1d", "cnn1d", nets.Cnn1d, _SIGNAL, 4, 0, 200),
    QuantisationCase("cnn1d, wide", "cnn1d", _wide_signal, _SIGNAL, 4, 0, 80),
    QuantisationCase("embedding mlp", "embedding_mlp", nets.EmbeddingMlp, (8,), 3, 20, 600),
    QuantisationCase("embedding mlp, wide", "embedding_mlp", _wide_table, (8,), 3, 20, 400, 1e-3),
)


class _Edge(nn.Module):
    """As a device's graph: logits, and codes that are made of numbers as the forge makes them."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, sample: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.net(sample)
        return logits, torch.clip(torch.round(torch.sigmoid(logits) * _LEVELS), 0, _LEVELS).to(torch.uint8)


def train_net(case: QuantisationCase) -> tuple[nn.Module, QuantisationTask]:
    torch.manual_seed(7)
    draw = _draw_votes if case.tokens else _draw_patterns
    x, y = draw(case, np.random.default_rng(7), 4000 + _SHOWN + _TESTED)
    net = case.build().train()
    optimiser = torch.optim.AdamW(net.parameters(), case.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, case.rate, total_steps=case.steps)
    for _ in range(case.steps):
        chosen = torch.randint(0, 4000, (_BATCH,))
        loss = nn.functional.cross_entropy(net(torch.from_numpy(x)[chosen]), torch.from_numpy(y)[chosen])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return net.eval(), QuantisationTask(x[4000 : 4000 + _SHOWN], x[4000 + _SHOWN :], y[4000 + _SHOWN :])


def _draw_patterns(
    case: QuantisationCase, rng: np.random.Generator, count: int
) -> tuple[Values, npt.NDArray[np.int64]]:
    """A smooth pattern per class, moved along its last axis and drowned in noise of several times its size."""
    long = case.shape[-1] if len(case.shape) > 2 else max(case.shape)
    axis = -1 if case.shape[-1] == long else -2
    raw = rng.normal(size=(case.labels, *case.shape))
    spectrum = np.fft.rfft(raw, axis=axis)
    band = np.arange(spectrum.shape[axis]) < 6
    spectrum *= band if axis == -1 else band[:, None]
    smooth = np.fft.irfft(spectrum, long, axis=axis)
    smooth /= smooth.std(axis=tuple(range(1, raw.ndim)), keepdims=True)
    y = rng.integers(0, case.labels, count)
    noise = _NOISE[case.kind] * rng.normal(size=(count, *case.shape))
    shifts = rng.integers(-2, 3, count)
    moved = np.stack([np.roll(smooth[label], shift, axis) for label, shift in zip(y, shifts, strict=True)])
    return (moved + noise).astype(np.float32), y.astype(np.int64)


_NOISE = {"resnet": 3.0, "mobilenet": 2.5, "vit": 3.0, "gru": 1.8, "cnn1d": 1.6}


def _draw_votes(case: QuantisationCase, rng: np.random.Generator, count: int) -> tuple[Values, npt.NDArray[np.int64]]:
    """Every value of every column votes for classes; some samples are decided by little."""
    places = case.shape[0] if case.kind == "embedding_mlp" else 1
    votes = rng.normal(size=(places, case.tokens, case.labels))
    x = rng.integers(0, case.tokens, (count, *case.shape))
    columns = np.arange(case.shape[0]) % places
    return x, votes[columns, x].sum(1).argmax(1).astype(np.int64)


def export_net(net: nn.Module, example: Tensor) -> onnx.ModelProto:
    return strip_metadata(export_module(_Edge(net).eval(), example, ("sample", "logits", "features")))


def measure_case(case: QuantisationCase) -> QuantisationRow:
    net, task = train_net(case)
    model = export_net(net, torch.from_numpy(task.x[:2]))
    found = build_candidates(model, task.shown, local_profile())
    return QuantisationRow(
        case,
        choose_precision(found, lambda graph: float((run_graph(graph, task.x)[0].argmax(1) == task.y).mean())),
        task,
    )


def format_table(rows: Sequence[QuantisationRow]) -> str:
    names = [str(precision) for precision in Precision if precision is not Precision.FLOAT16]
    head = ["net", *names, "ships", "size", "p50", "points lost", "labels that differ", "codes that differ"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(_format_line(row, names) for row in rows)])


def _format_line(row: QuantisationRow, names: Sequence[str]) -> str:
    by_name = {candidate.precision: candidate for candidate in row.choice.candidates}
    exact, shipped = row.choice.candidates[0], row.choice.shipped
    (theirs, their_codes), (ours, our_codes) = run_graph(exact.graph, row.task.x), run_graph(shipped.graph, row.task.x)
    cells = [
        *(_format_cell(by_name[name]) for name in names),
        f"**{shipped.precision}**",
        f"{shipped.size_bytes / exact.size_bytes:.2f} x",
        f"{shipped.ratio:.2f} x",
        f"{(exact.accuracy - shipped.accuracy) * 100:+.1f}",
        f"{(theirs.argmax(1) != ours.argmax(1)).mean():.1%}",
        f"{(their_codes != our_codes).mean():.1%}",
    ]
    return f"| {row.case.name} | {' | '.join(cells)} |"


def _format_cell(candidate: PrecisionCandidate) -> str:
    if candidate.fault:
        return "-"
    return (
        f"{candidate.p50_us:.0f} us, {candidate.size_bytes / 1000:.0f} kB, {candidate.rss_bytes / 1e6:.1f} MB, "
        f"{candidate.accuracy:.1%}"
    )


def build_figures(rows: Sequence[QuantisationRow]) -> list[Figure]:
    """The three promises, each by its worst net; size for convolution and linear nets over 1 MB."""
    shipped = [(row, row.choice.shipped, row.choice.candidates[0]) for row in rows]
    loss = max((exact.accuracy - ours.accuracy) * 100 for _, ours, exact in shipped)
    slowest = max(ours.ratio for _, ours, _ in shipped)
    big = [
        ours.size_bytes / exact.size_bytes
        for row, ours, exact in shipped
        if exact.size_bytes > BIG_BYTES and row.case.kind in _KINDS
    ]
    return [
        Figure("quantised edge: accuracy lost, worst net", loss, "points", MAX_LOSS_POINTS),
        Figure("quantised edge: p50 as shipped to float32's, slowest net", slowest, "x", 1 + NOISE),
        Figure("quantised edge: size as shipped, convolution and linear nets over 1 MB", max(big), "x", MAX_SIZE),
    ]


def main() -> int:
    torch.set_num_threads(1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    wanted = sys.argv[1:]
    rows = []
    for case in CASES:
        if not wanted or case.kind in wanted:
            rows.append(measure_case(case))
            print(format_table(rows[-1:]).splitlines()[-1], flush=True)
            for dropped in rows[-1].choice.dropped:
                print(f"    {dropped.precision}: {dropped.reason}", flush=True)
    print(format_table(rows))
    if not wanted:
        print("\n".join(format_line(figure) for figure in build_figures(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
