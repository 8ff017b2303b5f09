"""Loader of users' models and samples by `package.module:function`, with validation of what they return.

Rule: users' code runs in this process with their folder first on the import path; it is code they trust. Whatever is
wrong with what it returns is reported here, before any work, in one line: what, and what to try.
"""

import difflib
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from models.bundle.preparation import Preparation
from models.forge.data.coerce import check_data, check_differences, check_outputs, coerce_data
from models.forge.data.packing import PackedInputs, pack_inputs
from models.forge.data.types import Data, ForgeError
from models.forge.partition.trace import TracedModel, check_finite_weights, wrap_user_errors
from models.forge.pipeline.pictures import PICTURES_PREFIX, load_pictures

__all__ = [
    "PackedInputs",
    "check_answers",
    "check_data",
    "check_model",
    "check_outputs",
    "load_data",
    "load_function",
    "load_model",
    "pack_inputs",
]

CHECKPOINT_PREFIX = "hf:"
_LOOKED_AT = 64  # samples
_ALIKE = 1e-6  # of the answers' scale
_OURS = frozenset(("models", "wire", "policies", "edge_agent", "cloud_hub", "simulations", "skerry"))


def load_model(where: str, folder: Path) -> nn.Module:
    """Import and call `pkg.mod:function` in `folder`; returns its model on the CPU, float32, in evaluation mode.

    `hf:PATH` is the Hugging Face checkpoint at that path. Raises ForgeError if it cannot be imported, raises an error,
    or returns no usable module.
    """
    if where.startswith(CHECKPOINT_PREFIX):
        return check_model(_load_checkpoint(folder / where.removeprefix(CHECKPOINT_PREFIX)), where)
    function = _resolve_name(where, folder)
    with wrap_user_errors(f"{where}: it raised an error", "call it in Python without arguments first"):
        model = function if isinstance(function, nn.Module) else function()
    return check_model(model, where)


def _load_checkpoint(path: Path) -> nn.Module:
    from models.huggingface.architecture import load_network  # noqa: PLC0415 - transformers takes seconds
    from models.huggingface.checkpoint import read_checkpoint  # noqa: PLC0415

    return load_network(read_checkpoint(path))


def load_data(where: str, folder: Path, preparation: Preparation | None = None, labels: tuple[str, ...] = ()) -> Data:
    """Import and call `pkg.mod:function` in `folder`; returns its samples as validated `Data`.

    `pictures:PATH` are the pictures at that path, a folder for each label, as `preparation` makes samples of them;
    `labels`: the model's, where there is one already.

    Accepted: a `Data` (or anything with training, calibration and heldout), or `(x, y)`, `(x, y, labels)`,
    `(x, y, labels, sensitive)`, `(x, y, labels, sensitive, groups)`, which a fixed seed splits 70 : 15 : 15, whole
    groups (patients, users, machines) at a time. `x`: an array `[n, ...]` or one per input;
    numpy, torch or nested lists. `y`: whole numbers or names = a classifier, floating point = a regressor.
    """
    if where.startswith(PICTURES_PREFIX):
        return check_data(load_pictures(folder / where.removeprefix(PICTURES_PREFIX), preparation, labels))
    function = _resolve_name(where, folder)
    with wrap_user_errors(f"{where}: it raised an error", "call it in Python without arguments first"):
        given = function() if callable(function) else function
    with wrap_user_errors(f"{where}: its samples are no arrays", "return (x, y) or (x, y, labels) as numpy arrays"):
        data = coerce_data(given)
    check_data(data)
    return data


def load_function(where: str, folder: Path) -> Any:
    """Import what `pkg.mod:function` in `folder` names, to be called later.

    Raises ForgeError if it cannot be imported or cannot be called.
    """
    function = _resolve_name(where, folder)
    if not callable(function):
        raise ForgeError(f"{where}: it is {type(function).__name__}, not a function; name one that can be called")
    return function


def check_model(model: Any, where: str = "model") -> nn.Module:
    """The model on the CPU as float32 in evaluation mode. `where`: its name in errors.

    Raises ForgeError if it is no `torch.nn.Module`, cannot be moved, or has weights that are NaN or infinite.
    """
    if not isinstance(model, nn.Module):
        raise ForgeError(f"{where}: it returns {type(model).__name__}, not a torch.nn.Module; return the model itself")
    with wrap_user_errors(
        f"{where}: it cannot be moved to the CPU as float32", "build it with its weights, on no meta device"
    ):
        ready: nn.Module = model.cpu().float().eval()
        check_finite_weights(ready)
    return ready


def check_answers(traced: TracedModel, data: Data) -> None:
    """Raise ForgeError if the model's number of outputs does not fit the data, or it answers all samples alike.

    Such a model (dead activations, samples in another scale than it was trained on) makes a hub that knows nothing.
    """
    check_outputs(traced.outputs, data)
    check_differences(data)
    every = data.training.x[0]  # evenly spaced: samples in their order of time may well have one answer for long
    x = torch.from_numpy(np.ascontiguousarray(every[:: max(1, len(every) // _LOOKED_AT)][:_LOOKED_AT]))
    if bool((x == x[:1]).all()):
        return
    with torch.no_grad():
        answers = traced.gm(x)
    if float((answers - answers[:1]).abs().max()) <= _ALIKE * max(1.0, float(answers.abs().max())):
        raise ForgeError(
            f"model: it gives the same answer to each of {len(x)} different samples; is it trained, with its weights"
            " loaded, and are the samples scaled as they were for its training?"
        )


def _resolve_name(where: str, folder: Path) -> Any:
    """The object that `package.module:function` names. Raises ForgeError, with the nearest name, if there is none."""
    module_name, colon, name = where.partition(":")
    if not colon or not name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ForgeError(f"{where}: not of the form package.module:function; for example my_package.nets:build_model")
    module = _import_module(module_name, folder.resolve())
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, [one for one in vars(module) if not one.startswith("_")], 1)
        raise ForgeError(f"{where}: {module_name} has no {name}" + (f"; did you mean {near[0]}?" if near else ""))
    return getattr(module, name)


def _import_module(name: str, folder: Path) -> Any:
    """Import a module with the user's folder first on the path.

    Raises ForgeError if it is missing, clashes with a loaded package, or raises while it is imported.
    """
    top = name.partition(".")[0]
    if str(folder) not in sys.path[:1]:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    _refuse_clash(top, folder)
    try:
        with wrap_user_errors(f"{name}: it cannot be imported", "run `python -c 'import " + name + "'` in its folder"):
            return importlib.import_module(name)
    except ForgeError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing and name.startswith(missing):
            line = f"{name}: no such module in {folder}; start the forge in the folder that holds it"
            raise ForgeError(line) from None
        if missing and missing.partition(".")[0] in _OURS:
            _refuse_clash(missing.partition(".")[0], folder)
        raise


def _refuse_clash(top: str, folder: Path) -> None:
    """Raise ForgeError if a loaded or own package of this name would be found instead of the user's."""
    theirs = next((path for path in (folder / top, folder / f"{top}.py") if path.exists()), None)
    loaded = sys.modules.get(top)
    if theirs is None or (loaded is None and top not in _OURS):
        return
    homes = [Path(path).resolve() for path in _module_paths(loaded)]
    if not any(home in {theirs, theirs / "__init__.py"} for home in homes):
        whose = "one of Skerry's own packages" if top in _OURS else "a package that is already loaded"
        raise ForgeError(f"{top}: {theirs} has the name of {whose}; rename yours, for example to my_{top}")


def _module_paths(module: Any) -> list[str]:
    file = getattr(module, "__file__", None)
    return [file] if file else list(getattr(module, "__path__", ()))
