"""What `skerry rollout start` does before it asks the hub: reads parameters, publishes a bundle, lays it out to serve.

Rule: nothing is given to any device here; what needs a signature from elsewhere ends the command with what to do.
"""

import json
import os
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloud_hub.cli.options import file_of, load_config
from models.bundle.bundle import open_bundle
from models.bundle.manifest import BundleError
from models.signing.request import RequestError, dump_request
from wire.process.exit_codes import Exit, ExitError
from wire.process.files import write_private

_LISTS = frozenset(("waves", "lab"))


def parameters(texts: Iterable[str]) -> dict[str, Any]:
    """`soak_s=600`, `waves=1,25%,100%`, `gate.signals.p95=2`: names with their JSON values.

    ExitError(USAGE) otherwise.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        *groups, name = key.split(".")
        if not equals or not all((*groups, name)):
            raise ExitError(Exit.USAGE, f"--set {text!r}: write NAME=VALUE")
        place = found
        for group in groups:
            inner = place.setdefault(group, {})
            if not isinstance(inner, dict):
                raise ExitError(Exit.USAGE, f"--set {text!r}: {group} is a value already")
            place = inner
        place[name] = [part.strip() for part in value.split(",")] if key in _LISTS else _value(value)
    return found


def _value(text: str) -> Any:
    """A word that is no JSON is itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def prepared(folder: Path, config: Path | None, state: Path | None, out: Path | None = None) -> str:
    """MODEL@VERSION of a bundle: published if it was not, and copied to the models folder if the hub has one.

    ExitError(WAITING) if the family's key is not here; the request to sign then lies in `out`, or beside the bundle.
    """
    from cloud_hub.cli.publish import open_repository  # noqa: PLC0415
    from cloud_hub.repository.publish import publish_bundle  # noqa: PLC0415 - tuf, for who names a folder

    try:
        manifest = open_bundle(folder).manifest
        published = publish_bundle(open_repository(file_of(config)), folder, datetime.now(UTC))
    except BundleError as error:
        raise ExitError(Exit.MODEL, f"{error}; name a bundle folder, or a published MODEL@VERSION") from None
    except RequestError as error:
        raise ExitError(Exit.CHECK_FAILED, str(error)) from None
    if published.request is not None:
        file = (out or folder.resolve().parent) / f"{manifest.name}-{manifest.version}.request.json"
        _write_request(file, dump_request(published.request))
        there = f"skerry keys sign {file} where the keys are, skerry models publish --finish {file} here"
        raise ExitError(Exit.WAITING, f"{manifest.model} is not signed yet: {there}, then start again")
    _lay_out(folder, load_config(config, state).models_folder, manifest.model)
    return manifest.model


def _write_request(file: Path, request: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private(file, request)
    except OSError as error:
        raise ExitError(Exit.DISK, f"{file}: {error.strerror}; name another folder with --out") from None


def _lay_out(folder: Path, models: Path | None, model: str) -> None:
    """The hub finds it there when it is asked to serve it; a copy half done has no manifest's name yet."""
    if models is None or folder.resolve().parent == models.resolve() or (models / model).exists():
        return
    scratch = models / f".{model}.{os.getpid()}"
    try:
        shutil.copytree(folder, scratch)
        scratch.rename(models / model)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise ExitError(Exit.DISK, f"{models}: {error.strerror}") from None
