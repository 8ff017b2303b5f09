"""Checkpoints of Hugging Face with random weights, in several shards, and edge parts whose codes are the sample."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from models.bundle.bundle import Bundle
from models.bundle.hub_part import HubManifest
from models.bundle.manifest import EDGE_FILE, FORMAT, GOLDEN_FILE, HUB_FILE, HUB_GRAPH_FILE, NO_HUB, InputSpec
from models.bundle.version import write_version
from models.graph.hub_model import encode_graphs, export_graph
from models.runtime.runner import echo_manifest
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

LABELS, LENGTH, WORDS, SIDE = 3, 12, 16, 16
_SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_TEXT = {**_SMALL, "vocab_size": WORDS, "max_position_embeddings": 40, "num_labels": LABELS, "pad_token_id": 0}
_PICTURES = {**_SMALL, "image_size": SIDE, "patch_size": 4, "num_labels": LABELS}


class CheckpointKind(NamedTuple):
    """A network of transformers: names of its class and configuration, and the configuration's values."""

    network: str
    config: str
    values: dict[str, Any]
    pictures: bool = False


KINDS = {
    "bert": CheckpointKind("BertForSequenceClassification", "BertConfig", _TEXT),
    "roberta": CheckpointKind("RobertaForSequenceClassification", "RobertaConfig", _TEXT),
    "distilbert": CheckpointKind("DistilBertForSequenceClassification", "DistilBertConfig", _TEXT),
    "vit": CheckpointKind("ViTForImageClassification", "ViTConfig", _PICTURES, pictures=True),
    "deit": CheckpointKind("DeiTForImageClassification", "DeiTConfig", _PICTURES, pictures=True),
}


def save_checkpoint(folder: Path, kind: str, shard: str = "20KB", noise: float = 0.1, **values: Any) -> nn.Module:
    """Write a checkpoint as its makers do, and return the network itself. `noise`: added to its first weights."""
    import transformers  # noqa: PLC0415 - seconds, and a development extra

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made = KINDS[kind]
    torch.manual_seed(5)
    config = getattr(transformers, made.config)(**{**made.values, **values})
    net: Any = getattr(transformers, made.network)(config).eval()
    with torch.no_grad():
        for parameter in net.parameters() if noise else ():
            parameter.add_(noise * torch.randn_like(parameter))  # else biases are 0, and layers norms 1
    net.save_pretrained(folder, max_shard_size=shard)
    if made.pictures:
        told = {"do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
        (folder / "preprocessor_config.json").write_text(json.dumps(told))
    return net  # type: ignore[no-any-return]


def expected_logits(net: Any, kind: str, x: Tensor) -> Tensor:
    """What transformers itself answers: padding (id 0) is masked, pictures in 0..1 are normalised."""
    with torch.no_grad():
        if not KINDS[kind].pictures:
            found: Tensor = net(input_ids=x, attention_mask=x.ne(0).long()).logits
            return found
        mean, spread = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
        logits: Tensor = net(pixel_values=(x - mean) / spread).logits
    return logits


def draw_samples(kind: str, count: int) -> Tensor:
    torch.manual_seed(count)
    return torch.rand(count, 3, SIDE, SIDE) if KINDS[kind].pictures else torch.randint(0, WORDS, (count, LENGTH))


class _Coded(nn.Module):
    """Codes 0..15 -> the sample -> a small net."""

    def __init__(self, decode: Callable[[Tensor], Tensor], net: nn.Module) -> None:
        super().__init__()
        self.decode, self.net = decode, net

    def forward(self, codes: Tensor) -> Tensor:
        return self.net(self.decode(codes))  # type: ignore[no-any-return]


class _SmallText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(WORDS, 4), nn.Linear(4, LABELS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.table(ids).mean(1))  # type: ignore[no-any-return]


class _Levels(nn.Module):
    """Codes 0..15 -> pixels in 0..1, by a table."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(15.0))

    def forward(self, codes: Tensor) -> Tensor:
        return codes / self.get_buffer("step")


def sample_edge(
    folder: Path, kind: str, *, features: bool = False, length: int = LENGTH, golden: bytes = b"golden"
) -> Bundle:
    """A version whose codes are the sample itself, or features of its own hub model, which nothing else reads.

    `length`: of texts, in tokens. `golden`: packed golden set, for precisions other than float32.
    """
    pictures = KINDS[kind].pictures
    shape = (3, SIDE, SIDE) if pictures else (length,)
    torch.manual_seed(1)
    small = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, LABELS)) if pictures else _SmallText()
    tail = nn.Sequential(_Levels(), small) if pictures else _Coded(Tensor.long, small)
    if features:
        tail = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE if pictures else length, LABELS))
    raw = torch.zeros(2, *shape, dtype=torch.float32 if pictures else torch.int64)
    graph, weights = encode_graphs(
        {"tail": export_graph(tail, (torch.zeros(2, *shape),)), "whole": export_graph(small, (raw,))}
    )
    sample = InputSpec("image", TensorDType.FP32, shape, 0.0, 1.0)
    if not pictures:
        sample = InputSpec("ids", TensorDType.INT64, shape, 0.0, WORDS - 1.0)
    manifest = msgspec.structs.replace(
        echo_manifest(labels=LABELS), format=FORMAT, hub=NO_HUB, name=kind, input=sample, fixed_bytes=2048,
        features=(FieldSpec("features", TensorDType.UINT8, shape, 0.0, 15.0, SensitivityLevel.P1, "features"),),
    )  # fmt: skip
    hub = HubManifest(name=kind, version=1, graph=HUB_GRAPH_FILE, weights=(HUB_FILE,))
    edge = {EDGE_FILE: b"edge", GOLDEN_FILE: golden}
    return write_version(folder, manifest, edge, hub, {HUB_GRAPH_FILE: graph, HUB_FILE: weights})
