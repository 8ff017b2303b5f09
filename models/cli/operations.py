"""`skerry models operations`: which operations of a torch model run where, from the tables that decide it.

Rule: what this prints is the page `docs/operations.md`; nothing of it is written by hand.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer


def operations(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of Markdown.")] = False
) -> None:
    """Print which operations of a model run on a hub, divided among its ranks, and on a device.

    As Markdown: docs/operations.md is what this prints.

    Example: skerry models operations
    """
    sys.stdout.write(_format_json() if as_json else format_operations_page())


def _format_json() -> str:
    from models.graph.aten_operations import OPERATION_GROUPS, REFUSED_GROUPS  # noqa: PLC0415 - torch

    tables = {"hub": OPERATION_GROUPS, "refused": REFUSED_GROUPS, "divided": _list_divided()}
    found = {title: {group: names.split() for group, names in groups.items()} for title, groups in tables.items()}
    return json.dumps(found, indent=2) + "\n"


def format_operations_page() -> str:
    """Format the page: what runs where, by groups, and what is refused for which reason."""
    return "\n".join(_list_lines()) + "\n"


def _list_lines() -> Iterator[str]:
    from models.graph.aten_operations import ALLOWED_OPERATIONS, OPERATION_GROUPS, REFUSED_GROUPS  # noqa: PLC0415 - torch

    yield _HEAD
    yield f"## On a hub: {len(ALLOWED_OPERATIONS)} operations"
    yield ""
    yield from _format_table("operations", OPERATION_GROUPS)
    yield ""
    yield _HUB
    yield from _format_table("operations", REFUSED_GROUPS, first="reason")
    yield ""
    yield _DIVIDED
    yield from _format_table("operations", _list_divided())
    yield ""
    yield _EXPERTS
    yield _DEVICE


def _list_divided() -> dict[str, str]:
    from models.graph.aten_operations import OPERATION_GROUPS  # noqa: PLC0415 - torch
    from models.sharding.split import DIVIDED_OPERATIONS  # noqa: PLC0415 - torch

    found = {
        group: " ".join(name for name in names.split() if _full_name(name) in DIVIDED_OPERATIONS)
        for group, names in OPERATION_GROUPS.items()
    }
    return {group: names for group, names in found.items() if names}


def _full_name(name: str) -> str:
    return f"aten.{name if '.' in name else name + '.default'}"


def _format_table(title: str, groups: Mapping[str, str], first: str = "group") -> Iterator[str]:
    yield f"| {first} | {title} |"
    yield "|---|---|"
    for group, names in groups.items():
        yield f"| {group} | {' '.join(f'`{name}`' for name in names.split())} |"


_HEAD = """# Operations: what of a model runs where

A model is traced by `torch.export`; what then runs on a hub and on a device is decided operation by operation, by the
tables below. This page is what `skerry models operations` prints. Names are those of ATen; an overload is named where
it is not the default one.

An operation that is in no table is first replaced by torch's own decomposition of it. Only if that needs an operation
which is refused is the model refused, with the name of the operation and of the module that uses it.
"""
_HUB = """None of these writes into what it is given, draws random numbers, keeps a state, or gives a tensor whose size
follows from values. The others of torch's core set are refused:
"""
_DIVIDED = """## Divided among ranks

On a hub of several ranks ([engines](engines.md)) these carry a divided tensor on, or divide a weight. Everything else
runs whole on every rank, on tensors that are put together before: always right, and no faster than on one.
"""
_EXPERTS = """## Experts, and other rows chosen by a mask

`nonzero`, `torch.where(mask)`, `x[mask]` and `x[mask] = y` are no operations of a graph: sizes would follow from
values. While a model is traced each gives all rows, and what is written back where the mask is false is left out. So a
mixture of experts that hands each expert its own tokens runs, on hub and device, and every expert computes every token:
as many times the work as there are experts to one that is chosen. `if mask.any():` may stay where it only saves work;
that is tried. Between reading rows and writing them back each row may depend on itself alone; a mean over the chosen
rows, a sort by expert with `bincount(...).tolist()`, or `len(rows)` as a number is refused.

Layers of transformers with experts (Mixtral, Qwen3-MoE, GPT-OSS and others) are traced as products over all their
experts; T5 and BART read a text at its last end token.

Over ranks such weights `[experts, ...]` in `torch.bmm(weights, x)` are divided by expert, and the ranks add up once at
the sum over experts. Experts that are modules of their own are divided inside, as any layers are.
"""
_DEVICE = """## On a device

The half before the cut becomes ONNX by torch's exporter, is quantised, and its operators are checked by the device
before it loads them: [the table of ONNX operators](bundles.md#operators). A half that needs another is refused by the
forge, by the operator's name; a cut before that place, or `--path`, leaves it to the hub."""
