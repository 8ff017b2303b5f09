"""CLINC150 as hashed n-grams: 150 intents, and questions that belong to none. Below the folder of `SKERRY_DATA`.

Law: `train` alone teaches; `val` and `oos_val` choose thresholds; `test` and `oos_test` are only measured on. The 100
questions of `oos_train` are not used: this is the paper's "oos-threshold" rule, not "oos-train". numpy only.
"""

import gzip
import json

import numpy as np
import numpy.typing as npt

from models.forge.data.types import OUT_OF_SCOPE, Data, ForgeError, Part
from models.zoo.merging_datasets_sets import folder
from models.zoo.merging_ngrams_text import encode

_FILE = "data_full.json.gz"


def clinc150() -> Data:
    """15,000 / 3,000 + 100 / 4,500 + 1,000 texts (Larson et al. 2019) as `[n, LENGTH]` int64; -1 = out of scope."""
    path = folder("clinc150") / _FILE
    if not path.is_file():
        raise ForgeError(f"clinc150: no {_FILE} in it; take data_full.json of github.com/clinc/oos-eval and gzip it")
    found: dict[str, list[list[str]]] = json.loads(gzip.decompress(path.read_bytes()))
    labels = tuple(sorted({intent for _, intent in found["train"]}))
    return Data(
        training=_text_part(found["train"], labels),
        calibration=_text_part(found["val"] + found["oos_val"], labels),
        heldout=_text_part(found["test"] + found["oos_test"], labels),
        labels=labels,
    )


def _text_part(rows: list[list[str]], labels: tuple[str, ...]) -> Part:
    numbers = {label: index for index, label in enumerate(labels)}
    y: npt.NDArray[np.int64] = np.array([numbers.get(intent, OUT_OF_SCOPE) for _, intent in rows], np.int64)
    return Part((encode([text for text, _ in rows]),), y)
