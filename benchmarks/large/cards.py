"""Benchmarks on a graphics card: bfloat16 over eager float32, the share of its own measured peak, and an escalation.

The last row is a BERT-Large in the hub's own engine, in each precision, over the same engine in float32.

Without a card nothing is measured, and the figures say so.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.harness.figures import Figure, find_median
from benchmarks.large.encoders import SIZES, make_text_version
from benchmarks.large.escalation import measure_escalation, time_batch
from cloud_hub.engine.base import EngineError
from cloud_hub.engine.card import RecordedStep
from cloud_hub.engine.devices import count_usable_cards
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.types import EngineOptions
from policies.serving.computing import ComputeOptions, DeviceChoice, Precision

NO_CARD = ("no card here: `make bench-large ARGS='--only cards'` on a machine with one",)
STEP = "card: bfloat16 and CUDA graph step over torch eager float32"
SHARE = "card: share of its measured peak at the best batch"
ENGINE = "BERT-Large in the hub's engine, bfloat16 over float32: a batch of 8 texts"
ROWS = (
    (STEP, "x", 0.35),
    (SHARE, "%", 60.0),
    ("cuda: p50 of a sealed escalation over the model's own time", "x", 1.3),
    (f"cuda: {ENGINE}", "x", 0.5),
)
WIDTH, LAYERS, LENGTH = 1024, 24, 128  # a BERT-Large
BATCHES = (1, 8, 32, 64, 128, 256)
ROUNDS, STEPS = 5, 10
PEAK_SIDE = 8192
READY_S = 300.0
PRECISIONS = (Precision.FLOAT32, Precision.BFLOAT16, Precision.FLOAT16, Precision.INT8)


def measure_cards(folder: Path) -> list[Figure]:
    """Time of a step beside eager float32, the share of the peak of a large product, and a sealed escalation."""
    if not count_usable_cards():
        return [
            Figure(name, math.nan, unit, aim, more_is_better=unit == "%", terms=NO_CARD) for name, unit, aim in ROWS
        ]
    steps = [_compare_steps(), _measure_share()]
    return [
        *steps,
        measure_escalation(folder, DeviceChoice.CUDA),
        measure_precisions(folder / "encoder", DeviceChoice.CUDA, SIZES["bert"]),
    ]


def _make_encoder(dtype: torch.dtype) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, batch_first=True, norm_first=True, activation="gelu")
    net = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return net.eval().to("cuda", dtype)


def _time_steps(step: Callable[[], object]) -> float:
    step()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / STEPS


@torch.inference_mode()
def _compare_steps() -> Figure:
    eager, x = _make_encoder(torch.float32), torch.randn(8, LENGTH, WIDTH, device="cuda")
    narrow = x.bfloat16()
    recorded = RecordedStep(_make_encoder(torch.bfloat16), [narrow])
    slow_s, quick_s = [], []
    for _ in range(ROUNDS):
        slow_s.append(_time_steps(lambda: eager(x)))
        quick_s.append(_time_steps(lambda: recorded(narrow)))
    ours, theirs = find_median(quick_s), find_median(slow_s)
    terms = (f"{ours * 1e3:.2f} ms over {theirs * 1e3:.2f} ms, batch 8, {torch.cuda.get_device_name()}",)
    return Figure(STEP, ours / theirs, "x", 0.35, terms=terms)


@torch.inference_mode()
def _measure_share() -> Figure:
    a = torch.randn(PEAK_SIDE, PEAK_SIDE, device="cuda", dtype=torch.bfloat16)
    peak = 2 * PEAK_SIDE**3 / min(_time_steps(lambda: a @ a) for _ in range(ROUNDS))
    net, best, at = _make_encoder(torch.bfloat16), 0.0, 0
    for batch in BATCHES:
        x = torch.randn(batch, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)
        tokens = batch * LENGTH
        work = LAYERS * tokens * (2 * 12 * WIDTH * WIDTH + 4 * LENGTH * WIDTH)
        step = RecordedStep(net, [x])
        rate = work / min(_time_steps(lambda x=x, step=step: step(x)) for _ in range(ROUNDS))  # type: ignore[misc]
        best, at = max((best, at), (rate, batch))
    terms = (f"{best / 1e12:.0f} of {peak / 1e12:.0f} TFLOP/s, at a batch of {at}",)
    share = 100 * best / peak
    return Figure(SHARE, share, "%", 60.0, more_is_better=True, terms=terms)


def measure_precisions(folder: Path, device: DeviceChoice, sizes: dict[str, int]) -> Figure:
    """Time of a batch of 8 texts in the hub's engine, bfloat16 over float32; the terms say all precisions."""
    path = make_text_version(folder, sizes, LENGTH).path
    batch_s, told = dict[Precision, float](), list[str]()
    for precision in PRECISIONS:
        means = EngineOptions(max_batch=8, ready_s=READY_S, compute=ComputeOptions(device, precision))
        try:
            engine = open_engine(path, means)
        except EngineError as error:
            told.append(f"{precision}: refused, {error}")
            continue
        try:
            engine.warm()
            batch_s[precision] = find_median([time_batch(engine, 8) for _ in range(50)])
            told.append(f"{engine.setup.precision} {batch_s[precision] * 1e3:.2f} ms ({engine.setup.steps})")
        finally:
            engine.stop()
    ratio = batch_s.get(Precision.BFLOAT16, math.nan) / batch_s.get(Precision.FLOAT32, math.nan)
    return Figure(f"{device.value}: {ENGINE}", ratio, "x", 0.5, terms=tuple(told))
