"""What of a report may leave under the policy of now: sums over samples are fields with a label, like any other. Pure.

Law: a class of samples whose terms do not list the field is not counted in it; where the base does not list it, nothing
of it leaves. The state of an install is no sample's and is always said.
"""

import msgspec

from edge_agent.core.merging_permissions_ruling import Ruled, Ruling
from policies.decisions.merging_egress_egress import QUALITY, SIGNALS, reports
from wire.protocol.rollout import InstallReport, Quality, Signals


def disclosed(report: InstallReport, ruling: Ruling) -> InstallReport:
    """The report without what has to stay."""
    return msgspec.structs.replace(
        report,
        quality=_quality(report.quality, ruling) if _listed(QUALITY, ruling) else None,
        signals=_signals(report.signals, ruling) if _listed(SIGNALS, ruling) else None,
    )


def _listed(name: str, ruling: Ruling) -> bool:
    return ruling.policy is not None and not ruling.noticed and reports(ruling.policy.base, name)


def _quality(quality: Quality | None, ruling: Ruling) -> Quality | None:
    if quality is None:
        return None
    cells = tuple(each for each in quality.cells if _may(QUALITY, each.data_class, ruling))
    return msgspec.structs.replace(quality, cells=cells)


def _signals(signals: Signals | None, ruling: Ruling) -> Signals | None:
    if signals is None:
        return None
    classes = tuple(each for each in signals.classes if _may(SIGNALS, each.data_class, ruling))
    return msgspec.structs.replace(signals, classes=classes)


def _may(name: str, data_class: str, ruling: Ruling) -> bool:
    ruled = ruling.of(data_class)
    return isinstance(ruled, Ruled) and ruled.denied is None and reports(ruled.terms, name)
