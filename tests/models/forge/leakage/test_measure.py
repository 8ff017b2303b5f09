"""Leakage measurement: metrics against known values, attacks that must succeed where nothing is hidden."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.bundle.measurements import LeakKind, leakage_fits
from models.forge.data.types import ForgeError
from models.forge.leakage import inversion, metrics
from models.forge.leakage.attribute_probes import measure_label_baseline, probe_attribute
from models.forge.leakage.effort import QUICK
from models.forge.leakage.inversion import ReconstructionMetric
from models.forge.leakage.measure import ExposedData, LeakageMeasurement, measure_leakage
from models.forge.leakage.membership import HubPredictions, measure_membership
from models.forge.leakage.metrics import BootstrapInterval, RatioEstimate
from models.forge.leakage.remeasure import keep_top_scores, transform_codes
from models.runtime.chain import TransformStep
from tests.examples import count_examples
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

CHAIN = "c" * 64
FAST = QUICK._replace(pairs=400, tests=120, steps=80, width=16)  # whether attacks are right, not how strong
RNG = np.random.default_rng(5)


def pictures(count: int = 600, size: int = 12) -> np.ndarray:
    """Bright bars on a dark ground: much the same class by class, told apart by place and width."""
    at, width = RNG.integers(1, size - 4, count), RNG.integers(1, 4, count)
    columns = np.arange(size)
    bars = ((columns >= at[:, None]) & (columns < (at + width)[:, None])).astype(np.float32)
    tilt = RNG.random((count, 1, size, 1)).astype(np.float32)
    return bars[:, None, None, :] * (0.4 + 0.6 * tilt)


def slow_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Equation 13 of Wang et al. 2004, window by window."""
    line = np.exp(-((np.arange(11) - 5.0) ** 2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    found = []
    for top in range(a.shape[0] - 10):
        for left in range(a.shape[1] - 10):
            x, y = (each[top : top + 11, left : left + 11].astype(float) for each in (a, b))
            mx, my = (window * x).sum(), (window * y).sum()
            vx, vy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
            cov = (window * (x - mx) * (y - my)).sum()
            found.append((2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4)))
    return float(np.mean(found))


def test_ssim_is_that_of_the_paper():
    a, b = RNG.random((3, 1, 14, 13)), RNG.random((3, 1, 14, 13))
    b[1] = 0.7 * a[1] + 0.3 * b[1]
    np.testing.assert_allclose(
        metrics.compute_ssim(a, b), [slow_ssim(x[0], y[0]) for x, y in zip(a, b, strict=True)], atol=1e-4
    )


@pytest.mark.parametrize(("first", "second"), [(0.2, 0.8), (0.0, 1.0), (0.5, 0.5)])
def test_ssim_of_two_even_greys_is_known(first, second):
    a, b = np.full((1, 3, 16, 16), first), np.full((1, 3, 16, 16), second)
    known = (2 * first * second + 1e-4) / (first**2 + second**2 + 1e-4)
    assert metrics.compute_ssim(a, b)[0] == pytest.approx(known, abs=1e-3)


def test_ssim_of_equal_pictures_is_one_and_of_a_negative_below_zero():
    x = RNG.random((2, 1, 16, 16))
    assert metrics.compute_ssim(x, x) == pytest.approx(1.0, abs=1e-4)
    assert metrics.compute_ssim(x, 1 - x).max() < 0


def test_pictures_smaller_than_the_window_are_compared_too():
    x = RNG.random((2, 1, 8, 8))
    assert metrics.compute_ssim(x, x) == pytest.approx(1.0, abs=1e-4)


def test_psnr_is_known_for_an_even_error():
    x = np.full((1, 1, 8, 8), 0.5)
    assert metrics.psnr_db(x, x + 0.1)[0] == pytest.approx(20.0)
    assert metrics.psnr_db(x, x)[0] == pytest.approx(100.0)


def test_the_feature_distance_grows_with_blur_and_ignores_nothing():
    x = RNG.random((4, 3, 16, 16)).astype(np.float32)
    near, far = np.clip(x + 0.02, 0, 1), np.full_like(x, 0.5)
    assert metrics.feature_distance(x, x).max() == pytest.approx(0, abs=1e-6)
    assert (metrics.feature_distance(x, near) < metrics.feature_distance(x, far)).all()


@given(st.integers(0, 1000))
@settings(max_examples=count_examples(10), deadline=None)
def test_the_interval_holds_its_value_and_narrows_with_samples(seed):
    values = np.random.default_rng(seed).random(400)
    wide, narrow = (
        metrics.bootstrap_interval(RatioEstimate.from_values(values[:50])),
        metrics.bootstrap_interval(RatioEstimate.from_values(values)),
    )
    assert wide.low < wide.value < wide.high
    assert narrow.high - narrow.low < wide.high - wide.low


@pytest.mark.further
def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    found = [metrics.bootstrap_interval(RatioEstimate.from_values(rng.normal(0, 1, 60))) for _ in range(60)]
    assert sum(each.low <= 0 <= each.high for each in found) >= 50


def test_a_set_guessed_at_random_is_above_nothing():
    present = RNG.random((200, 30)) < 0.2
    assert metrics.micro_f1(present, present).value() == 1.0
    assert metrics.micro_f1(present, ~present).value() == 0.0
    assert metrics.rescale_above_chance(0.4, 0.4) == 0.0


@pytest.mark.further
def test_a_picture_sent_as_it_is_is_rebuilt_and_noise_is_not():
    x = pictures()
    truth = inversion.prepare_samples(x, FAST)
    assert truth.metric is ReconstructionMetric.SSIM
    bare = inversion.invert_codes(truth, (np.rint(x * 255).astype(np.uint8),), FAST)
    blind = inversion.invert_codes(truth, (RNG.integers(0, 4, (len(x), 4), np.uint8),), FAST)
    assert bare.score.value > 0.9
    assert blind.score.value < 0.6 < bare.score.low
    assert blind.score.low <= blind.score.value <= blind.score.high


@pytest.mark.further
def test_a_code_with_no_grid_is_attacked_as_well():
    x = pictures()
    codes = np.rint(x.mean(2).reshape(len(x), -1) * 15).astype(np.uint8)  # all there is to know
    assert inversion.invert_codes(inversion.prepare_samples(x, FAST), (codes,), FAST).score.value > 0.6


@pytest.mark.further
def test_a_table_is_rebuilt_as_far_as_its_columns_are_sent():
    x = RNG.normal(size=(600, 8)).astype(np.float32) * [1, 10, 100, 1, 1, 1, 1, 1]
    truth = inversion.prepare_samples(x, FAST)
    assert truth.metric is ReconstructionMetric.EXPLAINED
    found = inversion.invert_codes(truth, (x[:, :4],), FAST)
    assert found.score.value == pytest.approx(0.5, abs=0.1)
    assert inversion.invert_codes(truth, (RNG.normal(size=(600, 3)),), FAST).score.value < 0.05


@pytest.mark.further
def test_token_ids_are_rebuilt_as_far_as_they_are_sent_and_padding_is_no_success():
    ids = RNG.integers(1, 40, (600, 6))
    ids[:, 4:] = 0
    truth = inversion.prepare_samples(ids, FAST)
    assert truth.metric is ReconstructionMetric.IDS
    present = (ids[:, :, None] == np.arange(40)).any(1).astype(np.uint8)
    assert inversion.invert_codes(truth, (present,), FAST).score.value > 0.8
    padding = (ids == 0).astype(np.uint8)
    assert inversion.invert_codes(truth, (padding,), FAST).score.value < 0.1


@pytest.mark.further
def test_more_pairs_never_teach_less_than_a_handful():
    x = pictures()
    truth = inversion.prepare_samples(x, FAST)
    codes = (np.rint(x.mean(2).reshape(len(x), -1) * 15).astype(np.uint8),)
    few, many = inversion.invert_codes(truth, codes, FAST, 40), inversion.invert_codes(truth, codes, FAST)
    assert (few.pairs, many.pairs) == (40, 400)
    assert few.score.value < many.score.value + 0.05


@pytest.mark.further
def test_the_same_attack_twice_wins_the_same():
    x = pictures(200)
    codes = (RNG.integers(0, 4, (200, 6), np.uint8),)
    truth = inversion.prepare_samples(x, FAST)
    assert inversion.invert_codes(truth, codes, FAST).score == inversion.invert_codes(truth, codes, FAST).score


def exposed(count: int = 500, **changes) -> ExposedData:
    x = pictures(count)
    y = (x.mean((1, 2, 3)) > 0.1).astype(np.int64)
    codes = np.rint(x.mean(2).reshape(count, -1) * 3).astype(np.uint8)
    return ExposedData(**{"x": x, "codes": (codes,), "y": y, **changes})


@pytest.mark.further
def test_rows_name_the_chain_and_lie_between_floor_and_ceiling():
    place = RNG.integers(0, 3, 500)
    told = exposed(sensitive={"place": place})
    told = ExposedData(told.x, (np.column_stack([told.codes[0], place]).astype(np.uint8),), told.y, told.sensitive)
    found = measure_leakage(told, CHAIN, FAST)
    assert not found.void
    assert all(leakage_fits(row) and row.chain == CHAIN for row in found.rows)
    main = found.rows[0]
    assert main.metric == ReconstructionMetric.SSIM
    assert main.floor < main.score <= main.upper95
    assert main.ceiling > 0.8
    assert {row.metric for row in found.rows} == {"ssim", "psnr_db", "feature_closeness", "advantage"}
    assert next(row for row in found.rows if row.kind == LeakKind.ATTRIBUTE).score > 0.4
    assert found.upper95 == main.upper95
    assert found.pictures is not None
    assert found.pictures.originals.shape == found.pictures.rebuilt.shape == (12, 1, 12, 12)


@pytest.mark.further
def test_an_attack_that_fails_where_nothing_is_hidden_voids_the_measurement():
    noise = RNG.random((70, 1, 24, 24)).astype(np.float32)  # more values than pairs: nobody learns to copy it
    blind = RNG.normal(size=(70, 4)).astype(np.float32)
    found = measure_leakage(ExposedData(noise, (blind.astype(np.uint8),), np.zeros(70), earliest=blind), CHAIN, FAST)
    assert found.rows == ()
    assert "void" in found.void
    assert "earliest cut or the sample itself" in found.void
    assert found.upper95 == 1.0  # what is not known counts as everything


@pytest.mark.further
def test_a_narrow_first_layer_that_hides_much_does_not_void_the_measurement():
    found = measure_leakage(exposed(earliest=RNG.normal(size=(500, 4)).astype(np.float32)), CHAIN, FAST)
    assert not found.void
    assert found.rows[0].ceiling > 0.8


def test_too_few_samples_measure_nothing():
    found = measure_leakage(exposed(30), CHAIN, FAST)
    assert found.rows == ()
    assert "60" in found.void
    assert LeakageMeasurement((), None).upper95 == 1.0


@pytest.mark.further
def test_a_column_that_the_codes_hold_is_guessed_and_another_is_not():
    speaker, other = RNG.integers(0, 4, 800), RNG.integers(0, 4, 800)
    codes = np.column_stack([RNG.integers(0, 16, (800, 6)), speaker * 3]).astype(np.uint8)
    told, untold = probe_attribute((codes,), speaker, quick=True), probe_attribute((codes,), other, quick=True)
    assert told is not None
    assert untold is not None
    assert told.score.value > 0.6
    assert abs(untold.score.value) < 0.1
    assert untold.score.low < 0 < untold.score.high + 0.05


@pytest.mark.further
def test_the_better_of_two_probes_is_no_proof_where_each_alone_would_hardly_be_one():
    rng = np.random.default_rng(3)  # of these draws the better probe is above chance by 2.0 of its standard errors
    hidden, other = rng.integers(0, 4, 800), rng.integers(0, 4, 800)
    codes = np.column_stack([rng.integers(0, 16, (800, 6)), hidden * 3]).astype(np.uint8)
    found = probe_attribute((codes,), other, quick=True)
    assert found is not None
    assert found.score.low < 0 < found.score.value


@pytest.mark.further
def test_a_common_value_guessed_always_is_no_advantage():
    column = (RNG.random(800) < 0.05).astype(np.int64)
    found = probe_attribute((RNG.integers(0, 16, (800, 4), np.uint8),), column, quick=True)
    assert found is not None
    assert found.score.value < 0.12
    assert probe_attribute((np.zeros((50, 2), np.uint8),), np.zeros(50, np.int64)) is None


def test_what_the_label_tells_is_the_floor_of_an_attribute():
    y = RNG.integers(0, 4, 400)
    assert measure_label_baseline(y, y // 2) == pytest.approx(0.5, abs=0.01)
    assert abs(measure_label_baseline(y, RNG.integers(0, 2, 400))) < 0.15


def answers(sure: float, count: int = 600) -> HubPredictions:
    y = RNG.integers(0, 5, count)
    return HubPredictions(RNG.normal(size=(count, 5)) + sure * (y[:, None] == np.arange(5)), y)


def test_a_model_that_is_surer_of_what_it_was_taught_is_found_out():
    found = measure_membership(answers(6.0), answers(1.0))
    assert found is not None
    assert found.advantage.low > 0.4
    assert found.found_at_1.value > 0.03


def test_a_model_that_treats_all_alike_gives_no_member_away():
    found = measure_membership(answers(2.0), answers(2.0))
    assert found is not None
    assert abs(found.advantage.value) < 0.15
    assert isinstance(found.advantage, BootstrapInterval)
    assert measure_membership(answers(2.0, 20), answers(2.0, 20)) is None


CODES = FieldSpec("features", TensorDType.UINT8, (16,), 0, 15, SensitivityLevel.P2, "features")


def test_defences_change_codes_as_devices_do():
    codes = np.arange(16, dtype=np.uint8)[None]
    assert transform_codes(codes, (TransformStep("clip", 2, 9), TransformStep("quantise", step=4)), CODES).tolist() == [
        [int(np.rint(min(max(c, 2), 9) / 4) * 4) for c in range(16)]
    ]
    noisy = transform_codes(np.full((500, 4), 8, np.uint8), (TransformStep("noise", step=2.0),), CODES)
    assert noisy.astype(float).std() == pytest.approx(2.0, abs=0.3)
    assert noisy.max() <= 15


@pytest.mark.parametrize(
    "step", [TransformStep("quantise", step=0.0), TransformStep("smear", step=1), TransformStep("redact")]
)
def test_a_transform_that_no_device_could_apply_is_refused(step):
    with pytest.raises(ForgeError):
        transform_codes(np.full((2, 3), 12, np.uint8), (step,), CODES)


def test_a_short_answer_keeps_the_largest_scores_only():
    kept = keep_top_scores(np.array([[0.1, 0.6, 0.2, 0.1]]), 2)
    assert kept.tolist() == [pytest.approx([0.2, 0.6, 0.2, 0.2])]
