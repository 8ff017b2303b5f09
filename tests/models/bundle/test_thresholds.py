import msgspec
import pytest

from models.bundle.manifest import BundleError
from models.bundle.measurements import CalibrationFigures, QualityMetric, RiskGuarantee
from models.bundle.thresholds import ClassThreshold, Thresholds, decode_thresholds, encode_thresholds, update_thresholds

DIGEST = "ab" * 32


def entry(threshold=0.87, promised=None):
    figures = CalibrationFigures(QualityMetric.ACCURACY, 500, 0.91, 0.94, 0.95, 0.97, threshold, 0.15, 0.05, 0.02)
    promise = None if promised is None else RiskGuarantee(0.02, 0.95, 500, promised, "learn-then-test/local")
    return ClassThreshold(threshold, "max-share 0.15", 1, figures, promise)


def made(**changes):
    return msgspec.structs.replace(update_thresholds(None, "digits@7", DIGEST, "camera", entry()), **changes)


def test_a_file_comes_back_as_it_was_written_in_the_same_bytes():
    both = update_thresholds(made(), "digits@7", DIGEST, "gateway", entry(0.6, promised=0.6))
    assert decode_thresholds(encode_thresholds(both)) == both
    shuffled = msgspec.structs.replace(both, classes=dict(reversed(both.classes.items())))
    assert encode_thresholds(shuffled) == encode_thresholds(both)


def test_every_change_is_counted_and_other_classes_stay():
    second = update_thresholds(made(), "digits@7", DIGEST, "gateway", entry(0.5))
    third = update_thresholds(second, "digits@7", DIGEST, "camera", entry(0.7))
    assert [f.counter for f in (second, third)] == [2, 3]
    assert {name: (c.threshold, c.counter) for name, c in third.classes.items()} == {
        "camera": (0.7, 3),
        "gateway": (0.5, 2),
    }


def test_thresholds_of_another_bundle_are_not_added_to():
    with pytest.raises(BundleError, match="is for digits@7"):
        update_thresholds(made(), "digits@8", "cd" * 32, "camera", entry())


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        (b'"format": 1', b'"format": 2', "newer version"),
        (b'"format": 1', b'"format": 0', "not a format of ours"),
        (b'"format": 1', b'"format": 1,\n "extra": 1', "extra"),
        (DIGEST.encode(), b"ab", "digest"),
        (b'"threshold": 0.87', b'"threshold": 1.5', "camera is impossible"),
        (b'"edge": 0.91', b'"edge": 91', "camera is impossible"),
        (b'"camera"', b'"../camera"', "class"),
        (b"{", b"[", "calibration"),
    ],
)
def test_a_tampered_file_is_refused_with_one_line(old, new, hint):
    data = encode_thresholds(made())
    assert old in data
    with pytest.raises(BundleError, match=hint) as caught:
        decode_thresholds(data.replace(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [entry(1.01), entry(0.8, promised=0.7)])
def test_a_threshold_that_differs_from_what_was_promised_is_never_written(bad):
    with pytest.raises(BundleError, match="camera is impossible"):
        update_thresholds(None, "digits@7", DIGEST, "camera", bad)


def test_a_file_without_classes_says_nothing_and_is_refused():
    with pytest.raises(BundleError, match="classes"):
        encode_thresholds(Thresholds("digits@7", DIGEST, 1, {}))
