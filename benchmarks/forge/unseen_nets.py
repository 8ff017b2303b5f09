"""Sixteen networks that the forge was not written for: are they traced, cut, exported to ONNX and run by a hub?

`make forge-unseen` prints the table: cuts (and how many of them leave at most a quarter of the work to the device),
whether the ONNX graph of each head answers as torch does, whether the hub's graphs of the whole and of the tails at two
cuts do, and seconds. `ARGS='--forge FOLDER'`: each is also forged there with the effort "quick", taught its own random
answers. Names of networks as further arguments: only these.

Random weights, small sizes: accuracies mean nothing here. Networks of `transformers` are built from a configuration.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn

from benchmarks.forge.networks import record_run
from models.forge.data.types import Data, DataPart, ForgeError
from models.forge.partition.cost import find_agreeing_cuts
from models.forge.partition.cuts import Cut, TracedModel, find_cuts, trace_model
from models.forge.partition.split import run_head, split_model
from models.forge.partition.trace import outputs_match
from models.forge.pipeline.forge import run_forge
from models.forge.spec import Effort, ForgeSpec
from models.graph.hub_model import decode_graphs, encode_graphs, export_graph
from tests.models.doubles.unseen_nets import UNSEEN

LABELS = 6
COUNTS = (490, 105, 105)
_LIGHT = 0.25


class Network(NamedTuple):
    """How to build a network, and how to draw samples for it. `regressor`: its answers are values."""

    build: Callable[[], nn.Module]
    draw: Callable[[int], Tensor]
    regressor: bool = False


class Answering(nn.Module):
    """A network of `transformers` as a function of one tensor. `given`: its input; `answer`: the field of logits."""

    def __init__(self, inner: nn.Module, given: str, answer: str = "logits") -> None:
        super().__init__()
        self.inner, self.given, self.answer = inner, given, answer

    def forward(self, x: Tensor) -> Tensor:
        found: Any = self.inner(**{self.given: x})
        out: Tensor = getattr(found, self.answer)
        return out


def _pictures(n: int) -> Tensor:
    return torch.rand(n, 3, 32, 32)


def _series(n: int) -> Tensor:
    return torch.randn(n, 64, 3)


def _hugging(kind: str, config: str, given: str = "pixel_values", answer: str = "logits", **shape: Any) -> nn.Module:
    import transformers  # noqa: PLC0415 - seconds, and a development extra

    return Answering(getattr(transformers, kind)(getattr(transformers, config)(**shape)), given, answer)


def _picture_net(name: str, **shape: Any) -> Network:
    return Network(
        lambda: _hugging(f"{name}ForImageClassification", f"{name}Config", num_labels=LABELS, **shape), _pictures
    )


_STAGES: dict[str, Any] = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 2, 1]}
_PATCHES: dict[str, Any] = {"num_input_channels": 3, "context_length": 64, "patch_length": 8, "patch_stride": 8}
_SERIES: dict[str, Any] = {**_PATCHES, "num_hidden_layers": 2, "d_model": 24, "num_attention_heads": 4, "ffn_dim": 48}
_SPEECH: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 24,
    "num_labels": LABELS,
}
_MOBILE: dict[str, Any] = {
    "hidden_sizes": [24, 32, 40],
    "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64],
    "patch_size": 2,
}
_SWIN: dict[str, Any] = {
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "image_size": 32,
}
_DINO: dict[str, Any] = {
    "patch_size": 4,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
}
_BERT: dict[str, Any] = {
    "vocab_size": 100,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 64,
    "max_position_embeddings": 32,
}
_AUDIO: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "patch_size": 8,
    "frequency_stride": 8,
    "time_stride": 8,
    "max_length": 64,
    "num_mel_bins": 32,
}


def _speech_net(name: str) -> Network:
    build = lambda: _hugging(f"{name}ForSequenceClassification", f"{name}Config", "input_values", **_SPEECH)  # noqa: E731
    return Network(build, lambda n: torch.randn(n, 1600))


def _plain(name: str) -> Network:
    return Network(UNSEEN[name].build, lambda n: UNSEEN[name].draw(n)[0])


def _series_net(kind: str, config: str, answer: str, *, regressor: bool = False, **shape: Any) -> Network:
    return Network(lambda: _hugging(kind, config, "past_values", answer, **shape), _series, regressor)


NETWORKS: dict[str, Network] = {
    "ConvNeXt": _picture_net("ConvNext", patch_size=2, **_STAGES),
    "ConvNeXt V2": _picture_net("ConvNextV2", patch_size=2, **_STAGES),
    "Swin": _picture_net("Swin", **_SWIN),
    "RegNet": _picture_net("RegNet", embedding_size=16, groups_width=8, **_STAGES),
    "MobileViT": _picture_net("MobileViT", image_size=32, output_stride=32, **_MOBILE),
    "DINOv2": _picture_net("Dinov2", **_DINO),
    "PatchTST classifier": _series_net(
        "PatchTSTForClassification",
        "PatchTSTConfig",
        "prediction_logits",
        num_targets=LABELS,
        use_cls_token=True,
        **_SERIES,
    ),
    "PatchTST regressor": _series_net(
        "PatchTSTForRegression",
        "PatchTSTConfig",
        "regression_outputs",
        regressor=True,
        num_targets=1,
        loss="mse",
        use_cls_token=True,
        **_SERIES,
    ),
    "PatchTSMixer": _series_net(
        "PatchTSMixerForTimeSeriesClassification",
        "PatchTSMixerConfig",
        "prediction_outputs",
        num_targets=LABELS,
        num_layers=2,
        d_model=16,
        **_PATCHES,
    ),
    "Wav2Vec2": _speech_net("Wav2Vec2"),
    "HuBERT": _speech_net("Hubert"),
    "DistilBERT": Network(
        lambda: _hugging(
            "DistilBertForSequenceClassification", "DistilBertConfig", "input_ids", num_labels=LABELS, **_BERT
        ),
        lambda n: torch.randint(1, 100, (n, 16)),
    ),
    "AST": Network(
        lambda: _hugging("ASTForAudioClassification", "ASTConfig", "input_values", num_labels=LABELS, **_AUDIO),
        lambda n: torch.randn(n, 64, 32),
    ),
    "SqueezeNet": _plain("squeezenet"),
    "DenseNet": _plain("densenet"),
    "ShuffleNet V2": _plain("shufflenet"),
    "Conv + bi-LSTM": _plain("conv_lstm"),
}


def build_network(name: str) -> nn.Module:
    """One of `NETWORKS` with weights of a fixed seed, in evaluation mode."""
    torch.manual_seed(11)
    return NETWORKS[name].build().eval()


def draw_data(name: str, model: nn.Module) -> Data:
    """Random samples; what the model answers is what there is to learn, less its mean so that labels differ."""
    torch.manual_seed(12)
    parts = []
    for count in COUNTS:
        x = NETWORKS[name].draw(count)
        with torch.no_grad():
            logits = model(x)
        if NETWORKS[name].regressor:
            parts.append(DataPart((x.numpy(),), logits.numpy().reshape(count).astype(np.float64)))
            continue
        y = (logits - logits.mean(0)).argmax(1).numpy()
        y[:LABELS] = np.arange(LABELS)
        parts.append(DataPart((x.numpy(),), y))
    labels = () if NETWORKS[name].regressor else tuple(f"label-{number}" for number in range(LABELS))
    training, calibration, heldout = parts
    return Data(training, calibration, heldout, labels)


def main() -> None:
    """Print the table. A network that fails has the reason in its row; the exit status is 1 if any did."""
    parser = argparse.ArgumentParser(description="Try networks that the forge was not written for.")
    parser.add_argument("--forge", type=Path, metavar="FOLDER", help="forge each into this folder, too")
    parser.add_argument("names", nargs="*", choices=[*NETWORKS, []], help="networks; all if none is given")
    asked = parser.parse_args()
    names, folder = asked.names or list(NETWORKS), asked.forge
    torch.set_num_threads(1)
    print("| network | cuts (<= 25 % of the work) | heads in ONNX equal | hub's graphs equal | s | forged |")
    print("|---|---|---|---|---|---|")
    failed = [name for name in names if not _print_row(name, folder)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def _print_row(name: str, folder: Path | None) -> bool:
    began = time.monotonic()
    try:
        cells = _try_network(name)
        seconds = f"{time.monotonic() - began:.1f}"
        forging = time.monotonic()  # what came before, a user does not wait for
        made = _forge(name, folder) if folder else ""
        row, fine = f"{' | '.join(cells)} | {seconds} | {made}", all(cell.startswith("all") for cell in cells[1:])
        record_run(name, exported=fine, made=made, seconds=time.monotonic() - forging)
    except ForgeError as error:
        row, fine = f"{error} | | | {time.monotonic() - began:.1f} |", False
        record_run(name, exported=False, made="", seconds=time.monotonic() - began)
    print(f"| {name} | {row} |", flush=True)
    return fine


def _try_network(name: str) -> tuple[str, str, str]:
    traced = trace_model(build_network(name), NETWORKS[name].draw(2))
    cuts = find_cuts(traced)
    light = [cut for cut in cuts if cut.share <= _LIGHT]
    equal = find_agreeing_cuts(traced, cuts)
    heads = "all" if equal == cuts else f"{len(equal)} of {len(cuts)}"
    tried = dict.fromkeys((cuts[0], (light or cuts)[-1]))
    x = NETWORKS[name].draw(5)
    faults = [cut.name for cut in tried if not _hub_tail_equal(traced, cut, x)]
    plain = fx.GraphModule(traced.gm, traced.gm.graph)
    faults += [] if _hub_equal(plain, (traced.example,), (x,)) else ["the whole"]
    return f"{len(cuts)} ({len(light)})", heads, "all" if not faults else f"not {', '.join(faults)}"


def _hub_tail_equal(traced: TracedModel, cut: Cut, x: Tensor) -> bool:
    parts = split_model(traced, cut)
    with torch.no_grad():
        return _hub_equal(parts.tail, run_head(parts.head, traced.example), run_head(parts.head, x))


def _hub_equal(module: nn.Module, example: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> bool:
    graph, weights = encode_graphs({"tail": export_graph(module, example)})
    with torch.no_grad():
        return outputs_match(module(*inputs), decode_graphs(graph, [weights], "tail")(*inputs))


def _forge(name: str, folder: Path) -> str:
    began = time.monotonic()
    label = name.lower().replace(" ", "-").replace("+", "and")
    model = build_network(name)
    try:
        bundle = run_forge(model, draw_data(name, model), ForgeSpec(name=label, effort=Effort.QUICK), folder / label)
    except ForgeError as error:
        return f"refused after {time.monotonic() - began:.0f} s: {error}"
    figures = bundle.manifest.calibration
    said = f"edge {figures.edge:.3f}, pair {figures.pair:.3f}, hub {figures.hub:.3f}"
    return f"{time.monotonic() - began:.0f} s; cut {bundle.manifest.cut}; {said}"


if __name__ == "__main__":
    main()
