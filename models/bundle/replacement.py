"""Place of a bundle folder that is to be written: free, empty, or an older bundle of the same model.

Rule: nothing is removed but files that an older bundle names itself, one by one and by name; a folder is removed only
once it is empty. Anything else at the place (a file, a link, a folder with one file more) is a `PlaceError`.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from models.bundle.folder import open_folder, read_plain_file
from models.bundle.hub_part import MAX_PART_BYTES, PART_FILE, decode_hub_manifest
from models.bundle.manifest import (
    FORMAT,
    HUB_FOLDER,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    REPORT_FILE,
    BundleError,
    Manifest,
    decode_manifest,
)


class PlaceError(BundleError):
    """The place where a bundle was to be written holds something that would be lost."""


def check_place(path: Path | str, name: str = "") -> None:
    """Check that a bundle of the model `name` may be written at `path`; "" accepts an older bundle of any model.

    PlaceError, one line, unless nothing is there, an empty folder, or a bundle with no file beside its own.
    """
    path = Path(path)
    if path.name in ("", ".."):
        raise PlaceError(f"{path}: a bundle gets a folder of its own: name a new one, such as {path / 'model-1'}")
    if path.is_symlink():
        raise PlaceError(f"{path} is a link: name the folder itself, or another")
    if path.is_dir():
        if any(path.iterdir()):
            _list_files(path, name)
    elif path.exists():
        raise PlaceError(f"{path} is a file: name a folder")
    else:
        _check_parents(path)


def replace_bundle(scratch: Path, path: Path, name: str = "") -> None:
    """Rename the folder `scratch` to `path`; an older bundle there is moved aside first and then removed by name.

    PlaceError as `check_place`, and then `path` is as it was.
    """
    check_place(path, name)
    if not path.exists():
        scratch.rename(path)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
    old = aside / path.name
    path.rename(old)
    scratch.rename(path)
    files = _list_files(old, name) if any(old.iterdir()) else []
    for file in files:
        file.unlink()
    with contextlib.suppress(FileNotFoundError):
        (old / HUB_FOLDER).rmdir()
    old.rmdir()
    aside.rmdir()


def _check_parents(path: Path) -> None:
    for parent in path.parents:
        if parent.exists():
            if not parent.is_dir():
                raise PlaceError(f"{path}: {parent} is a file, no folder")
            return


def _list_files(path: Path, name: str) -> list[Path]:
    """Files of the bundle at `path`. PlaceError if it is no bundle, another model's, or has a file beside its own."""
    other = "name another folder, or move this one away"
    if not (path / MANIFEST_FILE).is_file():
        raise PlaceError(f"{path} is there already and is no bundle (it has no {MANIFEST_FILE}): {other}")
    try:
        with open_folder(path) as folder:
            manifest = decode_manifest(read_plain_file(folder, MANIFEST_FILE, MAX_MANIFEST_BYTES))
    except BundleError as error:
        raise PlaceError(f"{error}; so it is not replaced: {other}") from None
    if name and manifest.name != name:
        raise PlaceError(f"{path} holds the bundle {manifest.model}, of another model than {name}: {other}")
    own = {MANIFEST_FILE, REPORT_FILE, *manifest.files} | _list_hub_files(path, manifest)
    entries = {Path(entry.path).relative_to(path).as_posix(): entry for entry in _walk(path)}
    plain = {file for file, entry in entries.items() if entry.is_file(follow_symlinks=False)}
    for stranger in sorted(entries.keys() - (own & plain)):
        raise PlaceError(f"{path} holds {stranger!r}, which is no part of its bundle {manifest.model}: {other}")
    return [path / file for file in sorted(entries)]


def _list_hub_files(path: Path, manifest: Manifest) -> set[str]:
    """Names of the hub part's files, as its own description has them; the description alone where it is damaged."""
    if manifest.format != FORMAT or not (path / HUB_FOLDER / PART_FILE).is_file():
        return set()
    own = {f"{HUB_FOLDER}/{PART_FILE}"}
    with contextlib.suppress(BundleError), open_folder(path / HUB_FOLDER) as folder:
        part = decode_hub_manifest(read_plain_file(folder, PART_FILE, MAX_PART_BYTES))
        own |= {f"{HUB_FOLDER}/{file}" for file in part.files}
    return own


def _walk(path: Path) -> list[os.DirEntry[str]]:
    """Everything in the folder but the folder `hub` itself, whose entries count instead."""
    with os.scandir(path) as entries:
        found = list(entries)
    hub = [each for each in found if each.name == HUB_FOLDER and each.is_dir(follow_symlinks=False)]
    for folder in hub:
        found.remove(folder)
        with os.scandir(folder.path) as entries:
            found.extend(entries)
    return found
