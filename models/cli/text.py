"""Command `skerry models text`: a classifier of short texts for the device, and a prompt for a language model."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError
from models.bundle.text_part import PLACEHOLDER, MessageRole, PromptMessage, TextTemplate
from models.cli.flags import accepts_flags
from models.cli.output_folder import check_output_folder
from models.cli.progress import stage_progress
from models.forge.data.types import ForgeError
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import open_console, require_path
from wire.protocol.messages import SensitivityLevel
from wire.text import decode_text

MAX_TEMPLATE_BYTES = 64 * 1024
_LEVELS = {"P0": SensitivityLevel.P0, "P1": SensitivityLevel.P1, "P2": SensitivityLevel.P2, "P3": SensitivityLevel.P3}

Source = Annotated[
    Path,
    typer.Argument(
        callback=require_path,
        metavar="SOURCE",
        help="CSV with the columns text and label, or a text version to keep.",
        show_default=False,
    ),
]
Llm = Annotated[
    str, typer.Option("--llm", metavar="NAME", help="The hub's language model, a [[llm]] name.", show_default=False)
]
Template = Annotated[
    Path,
    typer.Option(
        callback=require_path, metavar="FILE", help="What is asked, with {text} in it once.", show_default=False
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write to.", show_default=False)]
System = Annotated[
    Path | None, typer.Option(callback=require_path, metavar="FILE", help="The system's message before it.")
]
Name = Annotated[str, typer.Option(help="Name of the model.", show_default="the folder's, or the version's")]
Version = Annotated[int, typer.Option(help="Version of the model.", show_default="1, or the next", min=0)]
Tokens = Annotated[int, typer.Option(help="Most tokens of an answer.", min=1, max=32_768)]
Answer = Annotated[int, typer.Option(help="Most bytes of an answer; it is cut there.", min=1, max=32_768)]
Temperature = Annotated[float, typer.Option(help="Of the sampling; 0: the likeliest token.", min=0.0, max=2.0)]
Bytes = Annotated[int, typer.Option(help="Most bytes of a device's text.", min=16, max=8192)]
Level = Annotated[str, typer.Option(help="Label of a text, P0 to P3; what is P4 never leaves.")]
Share = Annotated[float, typer.Option(help="Ask for at most this share of texts.", min=0.0, max=1.0)]
Seed = Annotated[int, typer.Option(help="Same seed and texts: same version.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@dataclass(frozen=True)
class TextFlags:
    """Flags of `skerry models text`."""

    source: Source
    llm: Llm
    template: Template
    out: Out
    system: System = None
    name: Name = ""
    version: Version = 0
    max_tokens: Tokens = 256
    answer_bytes: Answer = 4096
    temperature: Temperature = 0.0
    text_bytes: Bytes = 512
    level: Level = "P3"
    max_share: Share = 0.25
    seed: Seed = 11
    as_json: AsJson = False


@accepts_flags(TextFlags)
def text(flags: TextFlags) -> None:
    """Make a version of kind text: the device classifies short texts, a language model of the hub answers the others.

    The device's half is trained on the CSV's texts in seconds, and leaves its threshold where at most --max-share is
    asked. --template is a file: the user's message, with {text} where the device's text stands. With a text version
    as SOURCE its device's half stays as it is and only the prompt is new. Exit code 12 for texts, a template or a
    version that cannot be used.

    Example: skerry models text a.csv --llm chat --template a.txt -o triage-1
    """
    check_output_folder(flags.out, flags.name)
    began = time.monotonic()
    template = TextTemplate(
        llm=flags.llm, messages=_read_messages(flags), max_tokens=flags.max_tokens, max_bytes=flags.answer_bytes,
        temperature=flags.temperature,
    )  # fmt: skip
    try:
        with stage_progress() as tell:
            tell("training", 0.0)
            made = _make_version(flags, template)
            tell("training", 1.0)
    except (BundleError, ForgeError) as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None
    except OSError as error:
        raise ExitError(
            ExitCode.DISK, f"{error.filename}: {error.strerror}; choose another folder or make room"
        ) from None
    facts = _describe(made, flags.llm, time.monotonic() - began)
    if flags.as_json:
        open_console().print_json(data=facts)
        return
    open_console().print(
        f"{facts['model']}  {facts['bundle']}\n"
        f"labels        {', '.join(facts['labels'])}\n"
        f"alone         {facts['accuracy']:.1%} right of {facts['samples']} held-out texts\n"
        f"asks          {facts['asked']:.1%} of them, below a confidence of {facts['threshold']:.3f}\n"
        f"asks whom     {facts['llm']}, an [[llm]] of the hub\n"
        f"next: skerry models publish {facts['bundle']}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _make_version(flags: TextFlags, template: TextTemplate) -> Bundle:
    from models.forge.text.version import TextRequest, make_text_version  # noqa: PLC0415 - torch takes a second

    if flags.level not in _LEVELS:
        raise ForgeError(f"--level: {flags.level[:20]!r}: P0, P1, P2 or P3; what is P4 never leaves")
    return make_text_version(
        TextRequest(
            source=flags.source, template=template, out=flags.out, name=flags.name, version=flags.version,
            max_bytes=flags.text_bytes, level=_LEVELS[flags.level], max_share=flags.max_share, seed=flags.seed,
        )
    )  # fmt: skip


def _read_messages(flags: TextFlags) -> tuple[PromptMessage, ...]:
    """Return the messages of the prompt. ExitError(MODEL) if a file is none, or the placeholder is missing."""
    asked = _read_text(flags.template)
    if asked.count(PLACEHOLDER) != 1:
        raise ExitError(
            ExitCode.MODEL, f"{flags.template}: {PLACEHOLDER} stands in it {asked.count(PLACEHOLDER)} times"
        )
    system = [PromptMessage(MessageRole.SYSTEM, _read_text(flags.system))] if flags.system else []
    return (*system, PromptMessage(MessageRole.USER, asked))


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if not 0 < len(data) <= MAX_TEMPLATE_BYTES:
            raise ExitError(ExitCode.MODEL, f"{path}: {len(data)} bytes, 1 to {MAX_TEMPLATE_BYTES} are taken")
        return decode_text(data).strip()
    except ValueError as error:
        raise ExitError(ExitCode.MODEL, f"{path}: {error}") from None
    except OSError as error:
        raise ExitError(ExitCode.MODEL, f"{path}: {error.strerror}") from None


def _describe(made: Bundle, llm: str, took_s: float) -> dict[str, Any]:
    manifest, figures = made.manifest, made.manifest.calibration
    return {
        "model": manifest.model,
        "bundle": str(made.path),
        "labels": list(manifest.labels),
        "llm": llm,
        "edge_bytes": sum(len(made.read_file(name)) for name in manifest.files),
        "question_bytes": manifest.fixed_bytes,
        "samples": figures.samples,
        "accuracy": figures.edge,
        "threshold": figures.threshold,
        "asked": figures.asked,
        "took_s": round(took_s, 1),
    }
