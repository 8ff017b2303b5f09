"""Tracing of a user's torch model with torch.export: one input, one output `[n, k]`, a free batch axis.

Rule: a model that cannot be traced is refused with one line that says what and what to try, never with a stack trace.
The graph answers as the model does, at batches of another size than the example's, or there is no graph. It has
functional operators only.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from models.forge.data.types import ForgeError
from models.forge.partition.macs import count_node_macs
from models.forge.partition.rewrite import rewrite_graph
from models.graph.exporter import strip_escape_codes
from models.graph.hub_model import check_graph, export_graph

_OTHER_BATCH = 5  # neither 1 nor the example's: these two are what an exporter may have frozen in
_LINE = 200  # most characters of a user's error message


class TracedModel(NamedTuple):
    """A model's evaluation graph.

    `gm`: `[n, ...] -> [n, outputs]`, sharing the model's weights; `macs` of one sample; `example`: the two samples it
    was
    traced with.
    """

    gm: fx.GraphModule
    macs: int
    outputs: int
    example: Tensor


class _ColumnOutput(nn.Module):
    """Wrapper that makes a regressor's answer `[n]` one of `[n, 1]`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.model(x)
        return answer.unsqueeze(-1)


def trace_model(model: nn.Module, example: Tensor) -> TracedModel:
    """Export `model` in evaluation mode. `example`: two samples `[2, *shape]` (a batch of 1 is frozen in).

    Raises ForgeError: the model does not run, is random, depends on the batch, has NaN in it, cannot be exported, or
    has operators that a hub does not run.
    """
    if len(example) != 2:
        raise ForgeError(f"model: trace with an example of 2 samples, not {len(example)}")
    check_finite_weights(model.eval())
    answer = _run_checked(model, example)
    if answer.dim() == 1:
        model = _ColumnOutput(model).eval()
    _check_deterministic(model, example)
    gm = _export_checked(model, example)
    check_graph(gm)
    macs = sum(count_node_macs(node) for node in gm.graph.nodes) // len(example)
    return TracedModel(gm, macs, answer.shape[1] if answer.dim() == 2 else 1, example)


def resize_batch(example: Tensor) -> Tensor:
    """The example's samples again, in a batch that has another size."""
    return example[torch.arange(_OTHER_BATCH) % len(example)]


def check_finite_weights(model: nn.Module) -> None:
    """Raise ForgeError for the first weight or buffer with NaN or infinite values."""
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise ForgeError(
                f"model: weight {name} has NaN or infinite values; train again with a smaller learning rate"
            )


def outputs_match(one: Tensor, other: Tensor) -> bool:
    """Equal within tolerance: summation order may differ."""
    one, other = one.detach(), other.detach()
    if one.shape != other.shape:
        return False
    scale = max(1.0, float(one.abs().max())) if one.numel() else 1.0
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * scale)


@contextmanager
def silence_exporters() -> Iterator[None]:
    """Silence the exporters.

    They warn of their own deprecations and of what they skipped, and no caller can act on it.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "torch.fx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def wrap_user_errors(what: str, remedy: str, *, innermost: bool = False) -> Iterator[None]:
    """Turn any exception of user code into a one-line ForgeError: `what`: the error; `remedy`.

    `innermost`: show the exception that caused all others, where the outer ones say only that something failed.
    """
    try:
        yield
    except ForgeError:
        raise
    except Exception as error:  # a user's model or function may raise anything
        shown: BaseException = error
        while innermost and shown.__cause__ is not None:
            shown = shown.__cause__
        raise ForgeError(f"{what}: {first_error_line(shown)}; {remedy}") from error


def first_error_line(error: BaseException) -> str:
    """Type and first line of an exception without escape codes, at most 200 characters."""
    lines = [line.strip() for line in strip_escape_codes(str(error)).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _LINE else text[: _LINE - 1] + "…"


def _run_checked(model: nn.Module, x: Tensor) -> Tensor:
    shape = list(x.shape)
    what = f"model: it does not run on a batch {shape} of {x.dtype}"
    with wrap_user_errors(what, "try it on your samples as they are given"), torch.no_grad(), silence_exporters():
        answer: Any = model(x)
    if not isinstance(answer, Tensor):
        raise ForgeError(
            f"model: it returns {type(answer).__name__}, not one tensor [n, k]; wrap it so that it returns its logits"
        )
    if answer.dim() not in {1, 2} or len(answer) != len(x) or not answer.is_floating_point():
        raise ForgeError(
            f"model: for a batch of {len(x)} it returns {list(answer.shape)} of {answer.dtype}, not float [n, k];"
            " pool or flatten what it returns to one row per sample"
        )
    if not bool(answer.isfinite().all()):
        raise ForgeError("model: it answers NaN or infinite values for real samples; scale its input or train it again")
    return answer


def _check_deterministic(model: nn.Module, example: Tensor) -> None:
    """One sample has one answer: at every call, and whatever else is in the batch."""
    first, again, among = (
        _run_checked(model, example),
        _run_checked(model, example),
        _run_checked(model, resize_batch(example)),
    )
    if not outputs_match(first, again):
        raise ForgeError(
            "model: it answers differently each time in evaluation mode; make dropout or noise obey .eval()"
        )
    if not outputs_match(first, among[:2]):
        raise ForgeError(
            "model: its answer to a sample depends on its batch; use statistics of training, not of the batch"
        )


def _export_checked(model: nn.Module, example: Tensor) -> fx.GraphModule:
    """Export to a graph of functional operators that the hub knows how to run, with a free batch axis."""
    remedy = "keep the forward pass in torch operators, without numpy or .item()"
    # torch prints whole graphs to standard error where it gives up
    with (
        wrap_user_errors("model: torch.export cannot trace it", remedy),
        silence_exporters(),
        redirect_stderr(StringIO()),
    ):
        gm: fx.GraphModule = rewrite_graph(export_graph(model, (example,)))
    source = next(node for node in gm.graph.nodes if node.op == "placeholder")
    if not isinstance(source.meta["val"].shape[0], torch.SymInt):
        raise ForgeError("model: its batch size is fixed; use x.shape[0] for the size of a batch")
    return gm
