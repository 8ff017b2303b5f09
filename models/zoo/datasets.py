"""Readers of the zoo's published data sets as arrays, as `sources` finds them.

Rule: the published test part is never trained on, tuned on or calibrated on; the calibration part is cut from training
by a fixed seed, and no sample is in two parts. numpy only, so that a test can read them.

Rule: heartbeats are split by patient and turbofan windows by engine: nobody who is calibrated or measured on was
trained on.
"""

import gzip
import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.forge.data.types import Data, DataPart
from models.zoo.sources import find_dataset

CALIBRATION = 5_000  # samples kept out of training of an image set
_SEED = 20
FASHION_LABELS = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def load_fashion_mnist() -> Data:
    """60,000 + 10,000 images `[n, 1, 28, 28]` float32 in 0..1 of 10 kinds of clothing (Xiao et al. 2017)."""
    home = find_dataset("fashion_mnist")
    train = _read_idx(home / "train-images-idx3-ubyte.gz"), _read_idx(home / "train-labels-idx1-ubyte.gz")
    test = _read_idx(home / "t10k-images-idx3-ubyte.gz"), _read_idx(home / "t10k-labels-idx1-ubyte.gz")
    return split_images((train[0][:, None], train[1]), (test[0][:, None], test[1]), FASHION_LABELS)


def split_images(
    train: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]],
    test: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]],
    labels: tuple[str, ...],
) -> Data:
    order = np.random.default_rng(_SEED).permutation(len(train[1]))
    kept, rest = order[:CALIBRATION], order[CALIBRATION:]
    return Data(
        training=_image_part(train[0][rest], train[1][rest]),
        calibration=_image_part(train[0][kept], train[1][kept]),
        heldout=_image_part(*test),
        labels=labels,
    )


def _image_part(x: npt.NDArray[np.uint8], y: npt.NDArray[np.uint8]) -> DataPart:
    return DataPart((x.astype(np.float32) / np.float32(255),), y.astype(np.int64))


def _read_idx(path: Path) -> npt.NDArray[np.uint8]:
    data = gzip.decompress(path.read_bytes())
    (count,) = struct.unpack(">I", data[4:8])
    if data[3] == 3:
        return np.frombuffer(data, np.uint8, offset=16).reshape(count, 28, 28)
    return np.frombuffer(data, np.uint8, offset=8)


Floats = npt.NDArray[np.float32]

# de Chazal et al. 2004: the inter-patient split; paced records (102, 104, 107, 217) are left out
DS1 = (101, 106, 108, 109, 112, 114, 115, 116, 118, 119, 122, 124, 201, 203, 205, 207, 208, 209, 215, 220, 223, 230)
DS2 = (100, 103, 105, 111, 113, 117, 121, 123, 200, 202, 210, 212, 213, 214, 219, 221, 222, 228, 231, 232, 233, 234)
CALIBRATION_PATIENTS = (114, 118, 124, 205, 223)  # of DS1; between them they have every class that is learnt
BEATS = ("normal", "supraventricular", "ventricular", "fusion")
_AAMI = {"N": "NLRejB", "S": "AaJSn", "V": "VEr", "F": "F"}  # paced and unclassifiable beats (Q) are left out
BEFORE, AFTER = 50, 78  # of 128 samples a second: 0.39 s before the R peak, 0.61 s after it
WINDOW = BEFORE + AFTER
RHYTHM = 6
_RECENT = 10  # beats: the local rhythm

CYCLES = 60
SENSORS = (2, 3, 4, 7, 8, 9, 11, 12, 13, 14, 15, 17, 20, 21)  # the other seven do not change in FD001
RUL_CAP = 125.0  # an engine's wear shows only near its end (Heimes 2008)
_FIRST_SENSOR = 4  # engine, cycle and three settings come before sensor 1
_CYCLE = 1  # column of an engine's age
CALIBRATION_ENGINES = 20  # every fifth of the 100


def load_heartbeats() -> Data:
    """MIT-BIH Arrhythmia (Moody & Mark 2001), lead II: `[n, 3 * 128 + 6]` float32 -> 4 AAMI classes.

    A sample is the beat before, the beat itself and the beat after (millivolts, each 128 samples about its R peak,
    less its own median), then the rhythm: RR before, after, their ratio, and each against the last ten beats and the
    patient's mean so far. `sensitive["patient"]` and `groups` are the record's number.
    """
    with np.load(find_dataset("mitbih_lead2") / "mitbih_lead2_128hz.npz", allow_pickle=False) as file:
        records = {int(name): _read_record(file, str(name)) for name in file["records"]}
    training = [r for r in DS1 if r not in CALIBRATION_PATIENTS and r in records]
    return Data(
        training=_join_patients(records, training),
        calibration=_join_patients(records, [r for r in CALIBRATION_PATIENTS if r in records]),
        heldout=_join_patients(records, [r for r in DS2 if r in records]),
        labels=BEATS,
    )


class _PatientRecord(NamedTuple):
    x: Floats
    y: npt.NDArray[np.int64]


def _join_patients(records: dict[int, _PatientRecord], chosen: list[int]) -> DataPart:
    x = np.concatenate([records[r].x for r in chosen])
    y = np.concatenate([records[r].y for r in chosen])
    patient = np.concatenate([np.full(len(records[r].y), r, np.int64) for r in chosen])
    return DataPart((x,), y, {"patient": patient}, patient)


def _read_record(file: Mapping[str, npt.NDArray[Any]], name: str) -> _PatientRecord:
    signal = file[f"sig_{name}"].astype(np.float32) / np.float32(1000)
    peaks, symbols = file[f"r_{name}"].astype(np.int64), file[f"lab_{name}"]
    classes = np.full(256, -1, np.int64)
    for index, letters in enumerate(_AAMI.values()):
        classes[[ord(letter) for letter in letters]] = index
    windows = _cut_windows(signal, peaks)
    rhythm = _compute_rhythm(peaks)
    beats = np.arange(1, len(peaks) - 1)
    beats = beats[classes[symbols[beats]] >= 0]
    x = np.concatenate([windows[beats - 1], windows[beats], windows[beats + 1], rhythm[beats]], axis=1)
    return _PatientRecord(x.astype(np.float32), classes[symbols[beats]])


def _cut_windows(signal: Floats, peaks: npt.NDArray[np.int64]) -> Floats:
    padded = np.pad(signal, (BEFORE, AFTER), mode="edge")
    cut = padded[peaks[:, None] + np.arange(WINDOW)]
    level = np.median(cut, axis=1, keepdims=True)
    return np.asarray(np.clip(cut - level, -5, 5), np.float32)


def _compute_rhythm(peaks: npt.NDArray[np.int64]) -> Floats:
    """Only what a device knows when the next beat has come: nothing is averaged over the future."""
    gaps = np.diff(peaks).astype(np.float64) / 128
    before = np.concatenate([gaps[:1], gaps])
    after = np.concatenate([gaps, gaps[-1:]])
    sums = np.cumsum(before)
    mean = sums / np.arange(1, len(before) + 1)
    earlier = np.concatenate([np.zeros(_RECENT), sums[:-_RECENT]])
    recent = (sums - earlier) / np.minimum(np.arange(1, len(before) + 1), _RECENT)
    columns = [before, after, before / after, before / recent, after / recent, before / mean]
    return np.asarray(np.clip(np.stack(columns, axis=1), 0, 4), np.float32)


def load_turbofans() -> Data:
    """C-MAPSS FD001 (Saxena & Goebel 2008): `[n, 60, 15]` float32, the last 60 cycles -> cycles left (at most 125).

    Each cycle has 14 sensors and its own number, counted from 1.

    Training and calibration: every window of 80 and 20 engines. Held out: the last window of the 100 test engines.
    `groups` are engines, those of the test set counted from 101.
    """
    home = find_dataset("cmapss_fd001")
    train, test = _read_table(home / "train_FD001.txt.gz"), _read_table(home / "test_FD001.txt.gz")
    left = np.minimum(np.loadtxt(io.BytesIO(gzip.decompress((home / "RUL_FD001.txt.gz").read_bytes()))), RUL_CAP)
    kept = [engine for engine in range(1, 101) if engine % (100 // CALIBRATION_ENGINES) == 0]
    rest = [engine for engine in range(1, 101) if engine not in kept]
    heldout = np.stack([_engine_windows(test, engine)[-1] for engine in range(1, 101)])
    return Data(
        training=_join_engines(train, rest),
        calibration=_join_engines(train, kept),
        heldout=DataPart((heldout,), left.astype(np.float32), groups=np.arange(101, 201)),
    )


def _read_table(path: Path) -> npt.NDArray[np.float64]:
    return np.loadtxt(io.BytesIO(gzip.decompress(path.read_bytes())))


def _join_engines(table: npt.NDArray[np.float64], engines: list[int]) -> DataPart:
    windows = [_engine_windows(table, engine) for engine in engines]
    y = np.concatenate([np.minimum(np.arange(len(w))[::-1], RUL_CAP) for w in windows])
    groups = np.repeat(np.asarray(engines, np.int64), [len(w) for w in windows])
    return DataPart((np.concatenate(windows),), y.astype(np.float32), groups=groups)


def _engine_windows(table: npt.NDArray[np.float64], engine: int) -> Floats:
    """All windows of one engine `[cycles, 60, 15]`; before its sixtieth cycle the first one is repeated."""
    rows = table[table[:, 0] == engine][:, [*(_FIRST_SENSOR + sensor for sensor in SENSORS), _CYCLE]]
    padded = np.concatenate([np.repeat(rows[:1], CYCLES - 1, axis=0), rows])
    return np.stack([padded[i : i + CYCLES] for i in range(len(rows))]).astype(np.float32)
