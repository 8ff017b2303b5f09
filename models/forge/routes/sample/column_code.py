"""Rows of unlike measured columns (tables) as levels: each column has values of its own that its codes stand for.

Rule: a value that many training samples share is a level, exactly; the other levels of a column lie as close as the
cube root of its density says (Panter and Dite 1951), which loses least in squares. Few levels take few bytes.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.bundle.manifest import InputSpec
from models.forge.data.types import Values
from models.forge.routes.sample.sample_types import TORCH_DTYPES, SampleCode, draw_rows
from models.forge.routes.sample.transform_code import fit_transform_codes
from models.runtime.feature_codec import ANS, build_ans_tables, build_codec, find_payload_bytes
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

MAX_COLUMNS = 256
_LEVELS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_DISCRETE = 64  # values of a column up to which it is taken for a flag or a category
_ATOM = 0.02  # share of the samples from which a value is a level of its own
_FITTED = 20_000
_TRIED = 256  # training samples on which a transform is compared
_BEYOND = np.finfo(np.float32).max  # in place of a middle that a column does not have

Levels = npt.NDArray[np.float32]


def fit_column_codes(x: Values, spec: InputSpec, payloads: Sequence[int], seed: int) -> list[SampleCode]:
    """Fit the code of most levels for each payload (bytes, rising) to rows float `[n, columns]`.

    In its place the transform of that payload where training rows arrive nearer, columns counted alike; never where a
    column has few values: a category that is a little off is another category.
    """
    rows = np.ascontiguousarray(x[draw_rows(len(x), seed, _FITTED)], np.float32)
    if not len(payloads) or not rows.std(0).any():
        return []
    by_levels = [_build_code(rows, most, spec) for most in _LEVELS]
    discrete = any(len(np.unique(column)) <= _DISCRETE for column in rows.T)
    transforms = [] if discrete else fit_transform_codes(x, spec, payloads, seed)
    found: dict[str, SampleCode] = {}
    for payload in payloads:
        rivals = [_last_fitting(codes, payload) for codes in (by_levels, transforms)]
        if any(rivals):
            best = min(filter(None, rivals), key=lambda code: _distance(code, rows[:_TRIED]))
            found[best.name] = best
    return list(found.values())


def _last_fitting(codes: Sequence[SampleCode], payload: int) -> SampleCode | None:
    return next((code for code in reversed(codes) if code.payload_bytes <= payload), None)


def _build_code(rows: Levels, most: int, spec: InputSpec) -> SampleCode:
    """The code of at most `most` levels a column, entropy coded."""
    columns = [find_levels(column, most) for column in rows.T]
    coder = ColumnCoder(columns).eval()
    with torch.inference_mode():
        codes = coder(torch.from_numpy(rows)).numpy().astype(np.uint8)
    levels = max(2, *(len(column) for column in columns))
    tables = build_ans_tables(codes, levels)
    field = FieldSpec("codes", TensorDType.UINT8, (len(columns),), 0, levels - 1, SensitivityLevel.P4, "codes")
    return SampleCode(
        name=f"sample-levels-{most}",
        coder=coder,
        decoder=ColumnDecoder(columns, spec).eval(),
        shape=(len(columns),),
        levels=levels,
        codec=ANS,
        tables=tables,
        payload_bytes=find_payload_bytes(ANS, field, tables),
    )


def find_levels(column: Levels, most: int) -> Levels:
    """At most `most` rising values that a column's values are rounded to.

    All there are if they are few, else the frequent ones and a share of the others.
    """
    values, counts = np.unique(column, return_counts=True)
    if len(values) <= most:
        return values
    frequent = np.sort(np.argsort(-counts, kind="stable")[: most // 2])
    atoms = values[frequent[counts[frequent] >= _ATOM * len(column)]]
    gaps = np.diff(values)
    density = np.cumsum(np.cbrt((counts[1:] + counts[:-1]) * np.square(gaps.astype(np.float64))))
    wanted = (np.arange(most - len(atoms)) + 0.5) / (most - len(atoms)) * density[-1]
    spread = np.interp(wanted, density, values[1:])
    return np.unique(np.concatenate([atoms, spread.astype(np.float32)]))


def _distance(code: SampleCode, rows: Levels) -> float:
    """Mean squared error of training rows as they arrive, each column in units of its own deviation."""
    field = FieldSpec("codes", TensorDType.UINT8, code.shape, 0, code.levels - 1, SensitivityLevel.P4, "codes")
    codec = build_codec(code.codec, (field,), code.tables)
    deviations = rows.std(0)
    with torch.inference_mode():
        codes = code.coder(torch.from_numpy(rows)).numpy().astype(np.uint8)
        sent = np.stack([codec.decode("codes", codec.encode("codes", one)) for one in codes])
        back = code.decoder(torch.from_numpy(sent).float()).float().numpy()
    return float(np.square((back - rows) / np.where(deviations > 0, deviations, 1)).mean())


class ColumnCoder(nn.Module):
    """Coder: how many middles between a column's levels lie below its value."""

    def __init__(self, columns: Sequence[Levels]) -> None:
        super().__init__()
        width = max(len(column) for column in columns) - 1
        middles = np.full((len(columns), max(1, width)), _BEYOND, np.float32)
        for row, column in zip(middles, columns, strict=True):
            row[: len(column) - 1] = (column[1:] + column[:-1]) / 2
        self.register_buffer("middles", torch.from_numpy(middles))

    def forward(self, sample: Tensor) -> Tensor:
        above = sample.float().unsqueeze(2) > self.get_buffer("middles")
        return above.float().sum(2)


class ColumnDecoder(nn.Module):
    """Decoder: codes -> the levels that they stand for."""

    def __init__(self, columns: Sequence[Levels], spec: InputSpec) -> None:
        super().__init__()
        width = max(len(column) for column in columns)
        table = np.stack([np.pad(column, (0, width - len(column)), "edge") for column in columns])
        self.register_buffer("table", torch.from_numpy(table.reshape(-1)))
        self.register_buffer("starts", torch.arange(len(columns)) * width)
        self.width, self.low, self.high, self.dtype = width, spec.low, spec.high, TORCH_DTYPES[spec.dtype]

    def forward(self, codes: Tensor) -> Tensor:
        places = codes.long().clamp(0, self.width - 1) + self.get_buffer("starts")
        found = self.get_buffer("table").index_select(0, places.flatten()).reshape(codes.shape)
        return found.clamp(self.low, self.high).to(self.dtype)
