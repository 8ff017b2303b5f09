"""Command `skerry models import`: a Hugging Face checkpoint becomes the hub model behind an edge part that exists."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import BundleError
from models.cli.flags import accepts_flags
from models.cli.output_folder import check_output_folder
from models.cli.progress import stage_progress
from models.forge.data.types import ForgeError
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import open_console, require_path

Checkpoint = Annotated[
    Path,
    typer.Argument(
        callback=require_path, metavar="CHECKPOINT", help="Folder with config.json and safetensors.", show_default=False
    ),
]
Edge = Annotated[
    Path,
    typer.Option(
        "--edge",
        callback=require_path,
        metavar="BUNDLE",
        help="Version whose codes are the sample itself.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write to.", show_default=False)]
Name = Annotated[str, typer.Option(help="Name of the model.", show_default="the edge's")]
Version = Annotated[int, typer.Option(help="Version of the model.", show_default="one above the edge's", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@dataclass(frozen=True)
class ImportFlags:
    """Flags of `skerry models import`."""

    checkpoint: Checkpoint
    edge: Edge
    out: Out
    name: Name = ""
    version: Version = 0
    as_json: AsJson = False


@accepts_flags(ImportFlags)
def import_checkpoint(flags: ImportFlags) -> None:
    """Put a Hugging Face classifier (text or pictures) behind the edge part of a version that exists.

    The checkpoint's safetensors are linked, not copied, and never held in memory. The edge's codes must be the sample
    itself (`skerry models forge --sample-level P1 --path sample-256`), because no other model reads learned features;
    for those forge the checkpoint itself (`skerry models forge hf:CHECKPOINT`). What the pair gains is unknown until it
    is measured: `skerry models calibrate`. Exit code 12 for a checkpoint or an edge that cannot be used.

    Example: skerry models import bert-large --edge reviews-3 --out reviews-4
    """
    check_output_folder(flags.out, flags.name)
    began = time.monotonic()
    try:
        with stage_progress() as tell:
            tell("importing", 0.0)
            from models.huggingface import importer  # noqa: PLC0415 - torch takes a second, and --help needs none

            asked = importer.ImportRequest(flags.checkpoint, flags.edge, flags.out, flags.name, flags.version)
            made = importer.import_checkpoint(asked)
            part = open_hub_part(made.path, made.manifest).manifest
            tell("importing", 1.0)
    except (BundleError, ForgeError) as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None
    except OSError as error:
        raise ExitError(
            ExitCode.DISK, f"{error.filename}: {error.strerror}; choose another folder or make room"
        ) from None
    facts = {
        "model": made.manifest.model,
        "bundle": str(made.path),
        "edge_bytes": sum(len(made.read_file(name)) for name in made.manifest.files),
        "weight_bytes": part.weight_bytes,
        "files": list(part.files),
        "took_s": round(time.monotonic() - began, 1),
    }
    if flags.as_json:
        open_console().print_json(data=facts)
        return
    open_console().print(
        f"{facts['model']}  {facts['bundle']}\n"
        f"devices fetch {facts['edge_bytes']:,} bytes, the hub holds {facts['weight_bytes']:,} bytes of weights\n"
        f"next: skerry models calibrate {facts['bundle']} --data PKG:FUNCTION --max-share 0.2",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
