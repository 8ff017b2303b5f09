"""Samples from a folder of pictures: one folder for each label, prepared as the agent prepares a camera's pictures.

Rule: nothing is left out silently. A file that is no picture, or a broken one, ends the reading with its name.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from models.bundle.preparation import PicturePreparation, Preparation
from models.forge.data.coerce import coerce_data
from models.forge.data.types import Data, ForgeError
from models.runtime.picture_files import MAX_PICTURE_FILE_BYTES, PICTURE_SUFFIXES, decode_picture
from models.runtime.preparation import prepare_picture

PICTURES_PREFIX = "pictures:"


def load_pictures(folder: Path, preparation: Preparation | None, labels: Sequence[str] = ()) -> Data:
    """Pictures of a folder as samples, split 70 : 15 : 15 by a fixed seed.

    `labels`: names in the model's order; () takes those of the folders, sorted. Raises ForgeError for a folder without
    two labels, of a label that the model does not have, or with a file that cannot be read.
    """
    if not isinstance(preparation, PicturePreparation):
        raise ForgeError("data: pictures: say how they become samples, with --input FILE, or forge the bundle with it")
    named = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    if len(named) < 2:
        raise ForgeError(f"data: {folder}: a folder for each label is wanted, with its pictures in it")
    names = tuple(labels) or tuple(named)
    if strange := sorted(set(named) - set(names)):
        raise ForgeError(f"data: {folder}: {strange[0]!r} is no label of the model")
    files = [(file, names.index(name)) for name in named for file in sorted((folder / name).iterdir())]
    x = np.stack([_read_sample(file, preparation) for file, _ in files])
    return coerce_data((x, np.array([label for _, label in files], np.int64), names))


def _read_sample(file: Path, preparation: PicturePreparation) -> "np.typing.NDArray[np.float32]":
    if file.suffix.lower() not in PICTURE_SUFFIXES:
        raise ForgeError(f"data: {file}: only {', '.join(PICTURE_SUFFIXES)} are read; move it elsewhere")
    try:
        if file.stat().st_size > MAX_PICTURE_FILE_BYTES:
            raise ForgeError(f"data: {file}: more than {MAX_PICTURE_FILE_BYTES} bytes")
        return prepare_picture(decode_picture(file.read_bytes()), preparation)
    except (OSError, ValueError) as error:
        raise ForgeError(f"data: {file}: {error}") from None
