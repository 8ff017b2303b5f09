"""Evidence about a forged pair for its warnings: trivial baselines, codes, leakage, and the sample sent by other means.

Rule: taken from what the run has made; only the baselines are fitted here, in seconds.
"""

from collections.abc import Mapping

from models.bundle.manifest import Manifest
from models.forge.data.types import Data
from models.forge.evaluation.trivial_baseline import fit_trivial_baselines
from models.forge.export.manifest import ENVELOPE_BYTES
from models.forge.report.payoff import PayoffEvidence
from models.forge.report.payoff_warnings import CodedSamples, HeldoutLabels
from models.forge.report.result import ForgedBundle
from models.forge.training.code_path import Route

_LOSSLESS = ("raw", "zlib -9")  # of the compression baselines, those that lose nothing of a sample


def collect_evidence(
    manifest: Manifest, data: Data, made: ForgedBundle, sealed_samples: Mapping[str, int], *, own_edge: bool
) -> PayoffEvidence:
    """Evidence of one bundle. `sealed_samples`: bytes of a question that carries the sample compressed by a method.

    `own_edge`: the device's half is a small model of the user's own.
    """
    shipped = None
    others = [
        CodedSamples(f"the sample, {name}", sealed_samples[name], 0.0) for name in _LOSSLESS if name in sealed_samples
    ]
    if made.path is None or made.path.route is not Route.SAMPLE:
        shipped = CodedSamples("codes", manifest.fixed_bytes + ENVELOPE_BYTES, max(0.0, made.judged.lost_calibration))
        points = (point for point in made.points if point.route is Route.SAMPLE)
        others += [CodedSamples(point.name, point.sealed_bytes, max(0.0, point.lost)) for point in points]
    return PayoffEvidence(
        silence=made.judged.choice.reason,
        trivial=fit_trivial_baselines(data),
        codes=made.measured_on.edge.codes,
        leakage=made.leaked.rows,
        shipped=shipped,
        others=others,
        work=made.edge.work,
        points=made.points,
        own_edge=own_edge,
        labels=HeldoutLabels(data.heldout.y[data.heldout.y >= 0], data.labels) if data.labels else None,
    )
