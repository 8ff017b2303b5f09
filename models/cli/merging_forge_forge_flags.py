"""The flags of `skerry models forge`, each with its help; docs/forge.md has the same table.

Law: what decides a bundle's content is a field of `Wish` and nothing else; `wish` copies it there by name.
"""

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from models.forge.merging_spec_wish import Effort, Wish

_LIMITS = "Limits: the cut is chosen to meet them"
_GATE = "When to ask the hub: one of them"
_RUN = "How"
_FUNCTION = "PKG:FUNCTION"


def _flag(told: str, panel: str | None = None, default: str | bool = False, **more: Any) -> Any:
    """`default`: how it is told in words; False: as there is none to tell."""
    return typer.Option(help=told, rich_help_panel=panel, show_default=default, **more)


def _switch(name: str, told: str) -> Any:
    return typer.Option(name, help=told, rich_help_panel=_RUN)


_Model = typer.Argument(metavar=_FUNCTION, help="Returns your torch model, or is one.", show_default=False)
_Data = typer.Option("--data", metavar=_FUNCTION, help="Returns (x, y), (x, y, labels) or a Data.", show_default=False)
_Out = typer.Option("--out", "-o", metavar="FOLDER", help="Shall become the bundle.", show_default=False)
_Small = _flag("Your own small model as the device's answer, instead of a learned one.", metavar=_FUNCTION)
_Augment = _flag("(samples, torch generator) -> samples: how training samples may be varied.", metavar=_FUNCTION)
_Cut = _flag("Cut here; skips measuring all others. A wrong name lists some.", _LIMITS, metavar="NAME")
_Bytes = _flag("Of codes in one question.", _LIMITS, "64 aimed at", min=1)
_Leakage = _flag("Success of the reconstruction attack, upper 95 % bound, 0..1.", _LIMITS)
_Time = _flag("Median of the device's half, on this machine.", _LIMITS)
_Loss = _flag("What the pair may lose against your model if all is asked: 0.01 = a point (or 1 % of an RMSE).", _LIMITS)
_Share = _flag("Ask at most this share.", _GATE, "0.25")
_Accuracy = _flag("Ask as little as reaches this accuracy (a regressor: this RMSE).", _GATE)
_Risk = _flag("Kept answers are wrong in at most this share, guaranteed with --confidence.", _GATE)
_Sure = _flag("Of --max-risk.", _GATE, default=True)
_Target = _flag("Made for: x86, arm64, cuda, tensorrt, openvino, coreml.", _RUN, "this processor")
_Precision = _flag("Ship float32, int8, int8-dynamic, int8-weights or float16, whatever is quicker.", _RUN, "measured")
_Effort = _flag("How long to teach, attack and search.", _RUN, default=True)
_Seed = _flag("Same seed, model, data and machine: same bundle.", _RUN, default=True, min=0)
_Threads = _flag("For teaching.", _RUN, "all", min=1)
_Cache = _flag("Keeps finished stages.", _RUN, "~/.cache/skerry/forge", metavar="FOLDER")


@dataclass(frozen=True)
class ForgeFlags:
    """As typed; `wish` is what they ask of the forge."""

    model: Annotated[str, _Model]
    data: Annotated[str, _Data]
    out: Annotated[Path, _Out]
    name: Annotated[str, _flag("Of the model.", default="the folder's")] = ""
    version: Annotated[int, _flag("Of the model: devices only ever go up.", default=True, min=1)] = 1
    edge_model: Annotated[str, _Small] = ""
    augment: Annotated[str, _Augment] = ""
    cut: Annotated[str, _Cut] = ""
    max_bytes: Annotated[int | None, _Bytes] = None
    max_leakage: Annotated[float | None, _Leakage] = None
    target_ms: Annotated[float | None, _Time] = None
    max_loss: Annotated[float | None, _Loss] = None
    max_share: Annotated[float | None, _Share] = None
    target_accuracy: Annotated[float | None, _Accuracy] = None
    max_risk: Annotated[float | None, _Risk] = None
    confidence: Annotated[float, _Sure] = 0.95
    target: Annotated[str, _Target] = ""
    precision: Annotated[str, _Precision] = ""
    effort: Annotated[Effort, _Effort] = Effort.NORMAL
    seed: Annotated[int, _Seed] = 11
    threads: Annotated[int, _Threads] = 0
    cache: Annotated[Path | None, _Cache] = None
    no_cache: Annotated[bool, _switch("--no-cache", "Keep nothing, use nothing kept.")] = False
    as_json: Annotated[bool, _switch("--json", "Print JSON instead of words.")] = False

    @property
    def wish(self) -> Wish:
        own = {field.name for field in fields(self)}
        given = {field.name: getattr(self, field.name) for field in fields(Wish) if field.name in own}
        return Wish(**given | {"name": self.name or _name_of(self.out), "threads": self.threads or _processors()})

    @property
    def cache_folder(self) -> Path | None:
        """`$XDG_CACHE_HOME/skerry/forge` or `~/.cache/skerry/forge` if none is named; None for no cache at all."""
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return None if self.no_cache else self.cache or base / "skerry" / "forge"


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _name_of(out: Path) -> str:
    """`digits` of `bundles/digits-3`; `model` if nothing that may be a name is left of it."""
    found = re.sub(r"[^a-z0-9_.-]+", "-", out.resolve().name.lower())
    found = re.sub(r"-v?\d+$", "", found).strip("-_.")[:64]
    return found or "model"
