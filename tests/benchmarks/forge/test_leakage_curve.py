"""Curve of leakage-aware teaching: what it says holds its aim, and which samples it is made of."""

import numpy as np

from benchmarks.forge.parts.leakage_curve import CurvePoint, describe_curve, thin_data
from models.forge.data.types import Data, DataPart
from models.forge.leakage.metrics import BootstrapInterval


def point(weight: float, lost_points: float, above: float) -> CurvePoint:
    return CurvePoint(weight, lost_points, BootstrapInterval(0.3 + above, 0.0, 1.0), 0.3, "network")


def test_only_a_weight_that_hides_enough_and_costs_little_more_holds_the_aim():
    found = [point(0, 2.0, 0.3), point(1, 2.8, 0.14), point(2, 2.9, 0.16), point(4, 3.5, 0.05)]
    assert describe_curve(found) == ["weight 1 holds 0.15 above the label alone at 1 point more lost"]
    assert describe_curve(found[:1])[0].startswith("no weight holds")


def test_training_and_calibration_are_thinned_and_the_heldout_part_stays():
    part = DataPart((np.arange(50, dtype=np.float32)[:, None],), np.arange(50))
    thin = thin_data(Data(part, part, part, ("a",)), 20, 10)
    assert (len(thin.training), len(thin.calibration), len(thin.heldout)) == (20, 10, 50)
    assert (thin.training.x[0][:, 0] == thin.training.y).all()
