"""Writes versions of kind `text`: both parts of a new one, or another prompt behind the device's half of an older one.

Rule: the text leaves as it is, but for what a policy redacts, so what the manifest states as leakage is all of it.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec

from models.bundle.bundle import Bundle, open_bundle
from models.bundle.hub_part import HubKind, HubManifest
from models.bundle.manifest import (
    EDGE_FILE,
    GOLDEN_FILE,
    TEXT_CODEC,
    TEXT_FIELD,
    TEXT_INPUT,
    BundleError,
    InputSpec,
    Manifest,
    ModelKind,
    Precision,
    Provenance,
    TargetPlatform,
)
from models.bundle.measurements import CalibrationFigures, LeakageRow, LeakKind, QualityMetric
from models.bundle.text_part import TEXT_FILE, TextTemplate, encode_text_template
from models.bundle.version import write_version
from models.forge.export.manifest import measure_question_bytes
from models.forge.export.onnx import OPSET
from models.forge.text.classifier import train_text_classifier
from models.forge.text.labelled import divide_texts, read_labelled_texts
from models.runtime.chain import FeatureChain, digest_chain
from models.runtime.golden import pack_golden
from wire.protocol.messages import FieldSpec, ModelRef, SensitivityLevel, TensorDType

_CUT = "text"


class TextRequest(NamedTuple):
    """What to make: of `source`, a CSV file or an older version's folder, with this prompt, the folder `out`.

    `name` "" and `version` 0: the folder's name and 1, or the older version's name and the next number. `max_bytes`: of
    a device's text; `level`: its sensitivity label; `max_share`: of texts that is asked at most. These three and the
    seed count for a CSV file alone.
    """

    source: Path
    template: TextTemplate
    out: Path
    name: str = ""
    version: int = 0
    max_bytes: int = 512
    level: SensitivityLevel = SensitivityLevel.P3
    max_share: float = 0.25
    seed: int = 11


def make_text_version(asked: TextRequest) -> Bundle:
    """Write the version and return its edge part. ForgeError or BundleError of one line; then nothing is written."""
    template = encode_text_template(asked.template)
    manifest, contents = _keep_edge(asked) if asked.source.is_dir() else _train_edge(asked)
    hub = HubManifest(name=manifest.name, version=manifest.version, kind=HubKind.TEXT, graph=TEXT_FILE)
    return write_version(asked.out, manifest, contents, hub, {TEXT_FILE: template})


def _keep_edge(asked: TextRequest) -> tuple[Manifest, dict[str, bytes]]:
    old = open_bundle(asked.source)
    if old.manifest.kind is not ModelKind.TEXT:
        raise BundleError(f"{asked.source}: {old.manifest.model} is a {old.manifest.kind}, not a text model")
    manifest = msgspec.structs.replace(
        old.manifest, name=asked.name or old.manifest.name, version=asked.version or old.manifest.version + 1
    )
    return manifest, {name: old.read_file(name) for name in old.manifest.files}


def _train_edge(asked: TextRequest) -> tuple[Manifest, dict[str, bytes]]:
    spec = InputSpec(TEXT_INPUT, TensorDType.UINT8, (asked.max_bytes,), 0.0, 255.0)
    texts = read_labelled_texts(asked.source, spec)
    made = train_text_classifier(divide_texts(texts, asked.seed), spec, max_share=asked.max_share, seed=asked.seed)
    golden = pack_golden(made.shown, made.scores, {TEXT_FIELD: made.shown})
    manifest = _describe(asked, texts.labels, spec)
    manifest = msgspec.structs.replace(manifest, temperature=made.temperature, calibration=made.figures)
    return manifest, {EDGE_FILE: made.graph, GOLDEN_FILE: golden}


def _describe(asked: TextRequest, labels: tuple[str, ...], spec: InputSpec) -> Manifest:
    """Return the manifest, but for what was measured."""
    name, version = asked.name or asked.out.resolve().name, asked.version or 1
    field = FieldSpec(TEXT_FIELD, TensorDType.UINT8, spec.shape, 0.0, 255.0, asked.level, TEXT_FIELD)
    whole = digest_chain(_CUT, TEXT_CODEC, (FeatureChain(field),))
    nothing = CalibrationFigures(QualityMetric.ACCURACY, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return Manifest(
        name=name,
        version=version,
        kind=ModelKind.TEXT,
        labels=labels,
        outputs=len(labels),
        input=spec,
        features=(field,),
        cut=_CUT,
        codec=TEXT_CODEC,
        fixed_bytes=measure_question_bytes(ModelRef(name, version, _CUT, TEXT_CODEC), {TEXT_FIELD: asked.max_bytes}),
        temperature=1.0,
        calibration=nothing,
        leakage=(LeakageRow(whole, LeakKind.RECONSTRUCTION, "", "copy", "token_f1", 0, 1.0, 1.0, 0.0, 1.0),),
        target=TargetPlatform("onnxruntime", OPSET, Precision.FLOAT32, "any"),
        provenance=Provenance(f"text:{asked.source.name}", seed=asked.seed),
    )
