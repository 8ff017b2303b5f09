"""The sample itself as codes, by the kind of input: transforms of pictures and signals, levels of tables, exact ids.

Rule: nothing is taught and no label is read; everything is fitted on training samples alone. What travels is the sample
to within a rounding, so its sensitivity is the sample's own.
"""

from collections.abc import Sequence

import numpy as np

from models.bundle.manifest import InputSpec
from models.forge.data.types import Values
from models.forge.routes.sample.column_code import MAX_COLUMNS, fit_column_codes
from models.forge.routes.sample.digit_code import fit_digit_codes
from models.forge.routes.sample.sample_types import TORCH_DTYPES, SampleCode
from models.forge.routes.sample.transform_code import fit_transform_codes

__all__ = ["SampleCode", "fit_sample_codes"]

_PICTURE_DIMENSIONS = 3  # of samples with their batch: whole numbers of so many are pictures, of fewer they are ids


def fit_sample_codes(x: Values, spec: InputSpec, max_payloads: Sequence[int], seed: int = 0) -> list[SampleCode]:
    """Fit one code per wanted payload (bytes) to training samples `[n, *spec.shape]`, the smallest first.

    A row of measured columns has levels by column, and a transform where that is worth another try; whole numbers in a
    row have one exact code, if a wanted payload holds it. Payloads longer than carry everything are left out.
    """
    payloads = sorted(set(max_payloads))
    if spec.dtype not in TORCH_DTYPES or not len(x):
        return []
    if np.issubdtype(x.dtype, np.integer) and x.ndim < _PICTURE_DIMENSIONS:
        return fit_digit_codes(x, spec, payloads, seed)
    if x.ndim == 2 and x.shape[1] <= MAX_COLUMNS:
        return fit_column_codes(x, spec, payloads, seed)
    return fit_transform_codes(x, spec, payloads, seed)
