"""Networks of transformers, built from a configuration without memory for their weights.

Rule: code from a checkpoint's folder is never run, and no weight is read. Parameters are moved to torch's "meta" device
as they are made (the way of accelerate's `init_empty_weights`); buffers, which a configuration decides, keep their
values.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.bundle.manifest import InputSpec
from models.forge.data.types import ForgeError
from models.forge.partition.trace import first_error_line
from models.huggingface.checkpoint import Checkpoint, read_json

PREPROCESSOR_FILE = "preprocessor_config.json"
TEXT, PICTURES = "ForSequenceClassification", "ForImageClassification"
_REBUILD_ERRORS = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Normalisation(NamedTuple):
    """What a picture network expects of pixels in 0..`top`: divided by `top`, then by channel `(x - mean) / spread`."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    top: float = 1.0


class TextClassifier(nn.Module):
    """Token ids `[n, length]` -> logits `[n, labels]` as float32. Ids equal to `padding` are not attended to."""

    def __init__(self, net: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.net = net
        self._padding = padding

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids.long()
        mask = {} if self._padding is None else {"attention_mask": ids.ne(self._padding).long()}
        logits: Tensor = self.net(input_ids=ids, **mask).logits
        return logits.float()


class PictureClassifier(nn.Module):
    """Pictures `[n, channels, height, width]` -> logits `[n, labels]` as float32."""

    def __init__(self, net: nn.Module, normal: Normalisation | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.net = net
        self._dtype = dtype
        self._normal = normal is not None
        if normal is not None:
            mean, spread = (torch.tensor(values).view(-1, 1, 1) * normal.top for values in normal[:2])
            self.register_buffer("mean", mean, persistent=False)
            self.register_buffer("spread", spread, persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        x = pictures
        if self._normal:
            x = (pictures.float() - self.get_buffer("mean")) / self.get_buffer("spread")
        logits: Tensor = self.net(pixel_values=x.to(self._dtype)).logits
        return logits.float()


def build_blank_network(checkpoint: Checkpoint) -> Any:
    """Build the network that a configuration names, its parameters on the "meta" device.

    ForgeError if transformers is not installed, or the configuration names nothing of it that is supported here.
    """
    kind = _find_class(checkpoint)
    with _name_errors(checkpoint):
        config = import_transformers().AutoConfig.from_pretrained(checkpoint.folder, **_LOCAL)
        with _blank_parameters():
            return kind(config).eval().requires_grad_(requires_grad=False)


def load_network(checkpoint: Checkpoint) -> nn.Module:
    """Load a checkpoint into memory as float32, as a function of one sample: for the forge, which trains with it.

    ForgeError as `build_blank_network`, and for weights that the network lacks.
    """
    kind = _find_class(checkpoint)
    with _name_errors(checkpoint):
        net, found = kind.from_pretrained(
            checkpoint.folder, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **_LOCAL
        )
    if missing := sorted(found["missing_keys"]):
        raise ForgeError(f"{checkpoint.folder}: no file holds {missing[0]}; is it a fine-tuned classifier?")
    return wrap_network(net.eval(), checkpoint, None, torch.float32)


_LOCAL = {"local_files_only": True, "trust_remote_code": False}


def _find_class(checkpoint: Checkpoint) -> Any:
    """Look up the class of the network that a configuration names."""
    transformers = import_transformers()
    kind = _check_config(checkpoint)
    found = getattr(transformers, kind, None)
    if found is None:
        raise ForgeError(f"{checkpoint.folder}: transformers {transformers.__version__} has no {kind}")
    return found


@contextmanager
def _name_errors(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn what transformers raises into a ForgeError of one line that names the folder."""
    try:
        yield
    except _REBUILD_ERRORS as error:
        raise ForgeError(f"{checkpoint.folder}: the network cannot be built: {first_error_line(error)}") from None


def wrap_network(net: Any, checkpoint: Checkpoint, spec: InputSpec | None, dtype: torch.dtype) -> nn.Module:
    """Wrap a network of transformers as a function of one sample.

    `spec`: of the sample; None: pictures are in 0..1. `dtype`: of the weights.
    """
    if str(checkpoint.config["architectures"][0]).endswith(TEXT):
        padding = getattr(net.config, "pad_token_id", None)
        return TextClassifier(net, padding if isinstance(padding, int) else None).eval()
    return PictureClassifier(net, _read_normalisation(checkpoint, spec), dtype).eval()


def import_transformers() -> Any:
    """Import transformers. ForgeError that says how to install it."""
    try:
        transformers: Any = importlib.import_module("transformers")  # an extra, and it takes seconds
    except ImportError:
        raise ForgeError("Hugging Face models need transformers: in this folder, pip install -e '.[hf]'") from None
    transformers.logging.set_verbosity_error()
    return transformers


def _check_config(checkpoint: Checkpoint) -> str:
    """Return the name of the architecture. ForgeError if it is none of ours."""
    config, folder = checkpoint.config, checkpoint.folder
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ForgeError(f"{folder}: config.json names no architecture")
    kind: str = names[0]
    if not kind.isidentifier() or not kind.endswith((TEXT, PICTURES)):
        raise ForgeError(f"{folder}: {kind[:80]} is no encoder that classifies (…{TEXT} or …{PICTURES})")
    if "auto_map" in config:
        raise ForgeError(f"{folder}: its network is code in the folder (auto_map), which is never run")
    if "quantization_config" in config:
        raise ForgeError(f"{folder}: its weights are quantised; import the plain ones, the hub quantises on loading")
    return kind


def _read_normalisation(checkpoint: Checkpoint, spec: InputSpec | None) -> Normalisation | None:
    """Read how pictures are normalised; None if nothing is said, or samples below 0 show that it was done before."""
    path = checkpoint.folder / PREPROCESSOR_FILE
    low, top = (0.0, 1.0) if spec is None else (spec.low, spec.high)
    if low < 0 or not path.exists():
        return None
    told = read_json(path)
    if not told.get("do_normalize", True) or "image_mean" not in told or "image_std" not in told:
        return None
    if top not in _PIXEL_TOPS:
        raise ForgeError(f"{path}: it normalises pixels of 0..1 or 0..255, the edge's samples are {low:g}..{top:g}")
    mean, spread = _channel_values(told["image_mean"]), _channel_values(told["image_std"])
    if len(mean) != len(spread) or not mean or not all(spread):
        raise ForgeError(f"{path}: image_mean and image_std are to be a number for each channel, image_std above 0")
    return Normalisation(mean, spread, top)


_PIXEL_TOPS = (1.0, 255.0)


def _channel_values(told: Any) -> tuple[float, ...]:
    """The numbers of a list, () if it is none."""
    plain = isinstance(told, list) and all(isinstance(value, int | float) for value in told)
    return tuple(map(float, told)) if plain else ()


@contextmanager
def _blank_parameters() -> Iterator[None]:
    """Move every parameter to the "meta" device as it is registered, before it is initialised."""
    register = nn.Module.register_parameter

    def register_blank(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, None if param is None else nn.Parameter(param.to("meta"), requires_grad=False))

    nn.Module.register_parameter = register_blank  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
