"""Tests of chain digests: the same chain has the same one always, another chain never."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from models.runtime.chain import Field, Step, digest, effective
from models.runtime.transforms import Tools, changed
from policies.decisions.egress import FieldPlan
from policies.model.policy import TransformKind, TransformSpec
from wire.protocol.messages import DType, FieldSpec, Level

CODES = FieldSpec("features", DType.UINT8, (32,), 0.0, 15.0, Level.P2, "features")
WHOLE = st.integers(-3, 20).map(float)
STEPS = st.lists(
    st.one_of(
        st.builds(lambda low, more: Step("clip", low, low + more), WHOLE, st.integers(1, 20).map(float)),
        st.builds(lambda step: Step("quantise", step=step), st.sampled_from([0.5, 1.0, 2.0, 3.0, 2.5])),
        st.sampled_from([Step("coarsen", step=3), Step("bucketize", values=(2.0, 9.5)), Step("top_k", step=4)]),
    ),
    max_size=3,
)


def of(*steps: Step, cut: str = "layer3", codec: str = "pack4", spec: FieldSpec = CODES) -> str:
    return digest(cut, codec, [Field(spec, steps)])


def done(codes: np.ndarray, steps: list[Step] | tuple[Step, ...]) -> np.ndarray:
    """What a device does to its codes."""
    found: np.ndarray = changed(codes[None], steps, CODES, Tools(lambda _, count: np.zeros(count), b""))[0]
    return found


def test_every_part_counts():
    other = FieldSpec("other", DType.UINT8, (32,), 0.0, 15.0, Level.P2, "features")
    names = [
        of(),
        of(cut="layer4"),
        of(codec="base5"),
        of(spec=other),
        of(Step("clip", 0, 8)),
        of(Step("clip", 0, 9)),
        of(Step("quantise", step=2)),
        of(Step("noise", step=2)),
        of(Step("noise", step=2, high=2)),
        of(Step("bucketize", values=(1.0, 2.0))),
        of(Step("bucketize", values=(1.0, 3.0))),
        of(Step("bucketize", values=(1.0,))),
        of(Step("redact", words=("email",))),
        of(Step("redact", words=("email", "iban"))),
        of(Step("project", low=1, step=4)),
        of(Step("project", low=2, step=4)),
        of(Step("clip", 0, 8), Step("quantise", step=2)),
        of(Step("quantise", step=2), Step("clip", 0, 8)),
        digest("layer3", "pack4", [Field(CODES), Field(other)]),
        digest("layer3", "pack4", []),
    ]
    assert len(set(names)) == len(names)


@given(st.lists(st.text(max_size=4), min_size=3, max_size=3), st.lists(st.text(max_size=4), min_size=3, max_size=3))
def test_parts_cannot_be_shifted_into_one_another(first, second):
    assume(first != second)
    made = [digest(a, b, [Field(FieldSpec(c, DType.UINT8, (1,), 0, 1, Level.P2, ""))]) for a, b, c in (first, second)]
    assert made[0] != made[1]


def test_a_policy_that_restates_the_range_needs_no_measurement_of_its_own():
    assert of(Step("clip", 0, 15)) == of()
    assert of(Step("clip", -5, 255), Step("quantise", step=1)) == of()
    assert of(Step("clip", 0, 8), Step("clip", 0, 9)) == of(Step("clip", 0, 8))


def test_a_plan_of_a_policy_has_the_name_of_the_same_steps_by_value():
    plan = FieldPlan(
        CODES, (TransformSpec(TransformKind.CLIP, 2.0, 9.0), TransformSpec(TransformKind.QUANTISE, step=4))
    )
    assert digest("c", "pack4", [plan]) == digest(
        "c", "pack4", [Field(CODES, (Step("clip", 2, 9), Step("quantise", step=4)))]
    )


@given(STEPS)
def test_what_is_left_out_of_a_name_changes_no_code(steps):
    codes = np.arange(16, dtype=np.uint8)
    kept = effective(steps, 0.0, 15.0)
    np.testing.assert_array_equal(done(codes, steps), done(codes, kept))


def test_zero_has_one_spelling():
    assert of(Step("clip", -0.0, 8)) == of(Step("clip", 0, 8.0))
