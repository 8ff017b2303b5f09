"""Choice of the cut, and the error if none meets the limits."""

import pytest

from models.forge.data.types import ForgeError
from models.forge.partition.cost import CutCost
from models.forge.partition.cuts import Cut
from models.forge.partition.select import BundleCost, build_refusal, find_cut_index, find_unmet_limits, rank_cuts
from models.forge.spec import ForgeSpec, validate_spec


def row(name, share, head_us, coded_bytes, lost=0.0):
    cut = Cut(name, (name,), ((4, 4),), share)
    return CutCost(cut, head_us, 10.0, 64, coded_bytes, coded_bytes, float(coded_bytes), 4, 0.9, 0.9, lost, 100)


ROWS = [row("stem", 0.02, 20.0, 900), row("middle", 0.2, 60.0, 300), row("deep", 0.8, 300.0, 20)]


def test_of_the_light_heads_the_one_with_the_fewest_bytes_is_taken():
    assert [r.cut.name for r in rank_cuts(ROWS, ForgeSpec())] == ["middle", "stem"]


def test_a_time_limit_replaces_the_share_of_work():
    assert rank_cuts(ROWS, ForgeSpec(target_ms=1.0))[0].cut.name == "deep"
    assert rank_cuts(ROWS, ForgeSpec(target_ms=0.05))[0].cut.name == "stem"


def test_a_wish_for_the_share_of_work_bounds_the_cuts():
    assert [r.cut.name for r in rank_cuts(ROWS, ForgeSpec(head_share=0.9))] == ["deep", "middle", "stem"]
    assert [r.cut.name for r in rank_cuts(ROWS, ForgeSpec(head_share=0.1))] == ["stem"]


def test_a_cut_whose_codes_lose_much_comes_after_those_that_keep_what_counts():
    rows = [row("small", 0.1, 5.0, 10, lost=0.2), row("large", 0.1, 5.0, 30)]
    assert [r.cut.name for r in rank_cuts(rows, ForgeSpec())] == ["large", "small"]


def test_a_model_whose_every_cut_is_late_is_cut_at_the_earliest():
    assert [r.cut.name for r in rank_cuts([row("a", 0.6, 1.0, 10), row("b", 0.9, 2.0, 5)], ForgeSpec())] == ["a"]


def test_a_time_that_no_head_meets_is_answered_with_the_nearest():
    with pytest.raises(ForgeError, match=r"--target-ms 0.01: the quickest head, up to stem, takes 0.02 ms"):
        rank_cuts(ROWS, ForgeSpec(target_ms=0.01))


def test_equal_rows_in_another_order_give_the_same_cut():
    twins = [row("b", 0.1, 5.0, 30), row("a", 0.1, 5.0, 30)]
    assert rank_cuts(twins, ForgeSpec())[0] == rank_cuts(twins[::-1], ForgeSpec())[0]


def test_a_wrong_cut_is_answered_with_the_likeliest_names():
    with pytest.raises(ForgeError, match=r"no such cut; there are 3, such as layer\.1\.relu"):
        find_cut_index("layer1.relu", ["layer.1.relu", "layer.2.relu", "head"])
    assert find_cut_index("head", ["layer.1.relu", "head"]) == 1


SHIPPED = BundleCost(payload_bytes=40, question_bytes=580, head_ms=0.5, loss=0.02, leakage=0.6)


def test_every_limit_that_is_broken_is_named():
    wish = ForgeSpec(max_bytes=39, target_ms=0.4, max_loss=0.01, max_leakage=0.5)
    assert [b.flag for b in find_unmet_limits(wish, SHIPPED)] == [
        "--max-bytes",
        "--target-ms",
        "--max-loss",
        "--max-leakage",
    ]
    assert find_unmet_limits(ForgeSpec(max_bytes=40, target_ms=0.5, max_loss=0.02, max_leakage=0.6), SHIPPED) == ()
    assert find_unmet_limits(ForgeSpec(), SHIPPED) == ()


@pytest.mark.parametrize("figure", BundleCost._fields)
def test_no_figure_of_a_bundle_exceeds_its_limit_without_a_word(figure):
    wish = ForgeSpec(head_share=0.25, max_bytes=1, question_bytes=1, target_ms=0.25, max_loss=0.25, max_leakage=0.25)
    shipped = BundleCost(*(97 if name == figure else 0 for name in BundleCost._fields))
    (found,) = find_unmet_limits(wish, shipped)
    assert f"{found.flag} {found.asked:g} is not met: the nearest is 97" in str(build_refusal([("only", (found,))]))


def test_the_refusal_names_the_cut_that_came_nearest_and_what_to_relax():
    near, far = (
        find_unmet_limits(ForgeSpec(max_loss=0.019), SHIPPED),
        find_unmet_limits(ForgeSpec(max_loss=0.001, max_bytes=1), SHIPPED),
    )
    said = str(build_refusal([("far", far), ("near", near)]))
    assert said == "cut near: --max-loss 0.019 is not met: the nearest is 0.02; relax --max-loss"
    assert "--effort thorough" in str(build_refusal([("near", near)]))


BAD = {
    "--name": ForgeSpec(name="Not A Name"),
    "--version": ForgeSpec(version=0),
    "--max-bytes": ForgeSpec(max_bytes=0),
    "--max-leakage": ForgeSpec(max_leakage=1.5),
    "--target-ms": ForgeSpec(target_ms=0.0),
    "--max-loss": ForgeSpec(max_loss=float("nan")),
    "--max-share": ForgeSpec(max_share=-0.1),
    "--max-risk": ForgeSpec(max_risk=2.0),
    "--confidence": ForgeSpec(confidence=1.0),
    "--threads": ForgeSpec(threads=0),
    "each choose the threshold": ForgeSpec(max_share=0.2, max_risk=0.02),
}


@pytest.mark.parametrize("flag", BAD)
def test_a_wish_that_can_never_be_met_is_refused_by_its_flag(flag):
    with pytest.raises(ForgeError, match=flag):
        validate_spec(BAD[flag])


def test_a_plain_wish_is_fine():
    validate_spec(ForgeSpec())
