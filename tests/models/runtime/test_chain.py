"""Tests of chain digests: the same chain has the same one always, another chain never."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from models.runtime.chain import FeatureChain, TransformStep, digest_chain, effective_steps
from models.runtime.transforms import TransformTools, apply_transforms
from policies.decisions.egress import FieldPlan
from policies.model.policy import TransformKind, TransformSpec
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

CODES = FieldSpec("features", TensorDType.UINT8, (32,), 0.0, 15.0, SensitivityLevel.P2, "features")
WHOLE = st.integers(-3, 20).map(float)
STEPS = st.lists(
    st.one_of(
        st.builds(lambda low, more: TransformStep("clip", low, low + more), WHOLE, st.integers(1, 20).map(float)),
        st.builds(lambda step: TransformStep("quantise", step=step), st.sampled_from([0.5, 1.0, 2.0, 3.0, 2.5])),
        st.sampled_from(
            [
                TransformStep("coarsen", step=3),
                TransformStep("bucketize", values=(2.0, 9.5)),
                TransformStep("top_k", step=4),
            ]
        ),
    ),
    max_size=3,
)


def of(*steps: TransformStep, cut: str = "layer3", codec: str = "pack4", spec: FieldSpec = CODES) -> str:
    return digest_chain(cut, codec, [FeatureChain(spec, steps)])


def done(codes: np.ndarray, steps: list[TransformStep] | tuple[TransformStep, ...]) -> np.ndarray:
    """What a device does to its codes."""
    found: np.ndarray = apply_transforms(
        codes[None], steps, CODES, TransformTools(lambda _, count: np.zeros(count), b"")
    )[0]
    return found


def test_every_part_counts():
    other = FieldSpec("other", TensorDType.UINT8, (32,), 0.0, 15.0, SensitivityLevel.P2, "features")
    names = [
        of(),
        of(cut="layer4"),
        of(codec="base5"),
        of(spec=other),
        of(TransformStep("clip", 0, 8)),
        of(TransformStep("clip", 0, 9)),
        of(TransformStep("quantise", step=2)),
        of(TransformStep("noise", step=2)),
        of(TransformStep("noise", step=2, high=2)),
        of(TransformStep("bucketize", values=(1.0, 2.0))),
        of(TransformStep("bucketize", values=(1.0, 3.0))),
        of(TransformStep("bucketize", values=(1.0,))),
        of(TransformStep("redact", words=("email",))),
        of(TransformStep("redact", words=("email", "iban"))),
        of(TransformStep("project", low=1, step=4)),
        of(TransformStep("project", low=2, step=4)),
        of(TransformStep("clip", 0, 8), TransformStep("quantise", step=2)),
        of(TransformStep("quantise", step=2), TransformStep("clip", 0, 8)),
        digest_chain("layer3", "pack4", [FeatureChain(CODES), FeatureChain(other)]),
        digest_chain("layer3", "pack4", []),
    ]
    assert len(set(names)) == len(names)


@given(st.lists(st.text(max_size=4), min_size=3, max_size=3), st.lists(st.text(max_size=4), min_size=3, max_size=3))
def test_parts_cannot_be_shifted_into_one_another(first, second):
    assume(first != second)
    made = [
        digest_chain(a, b, [FeatureChain(FieldSpec(c, TensorDType.UINT8, (1,), 0, 1, SensitivityLevel.P2, ""))])
        for a, b, c in (first, second)
    ]
    assert made[0] != made[1]


def test_a_policy_that_restates_the_range_needs_no_measurement_of_its_own():
    assert of(TransformStep("clip", 0, 15)) == of()
    assert of(TransformStep("clip", -5, 255), TransformStep("quantise", step=1)) == of()
    assert of(TransformStep("clip", 0, 8), TransformStep("clip", 0, 9)) == of(TransformStep("clip", 0, 8))


def test_a_plan_of_a_policy_has_the_name_of_the_same_steps_by_value():
    plan = FieldPlan(
        CODES, (TransformSpec(TransformKind.CLIP, 2.0, 9.0), TransformSpec(TransformKind.QUANTISE, step=4))
    )
    assert digest_chain("c", "pack4", [plan]) == digest_chain(
        "c", "pack4", [FeatureChain(CODES, (TransformStep("clip", 2, 9), TransformStep("quantise", step=4)))]
    )


@given(STEPS)
def test_what_is_left_out_of_a_name_changes_no_code(steps):
    codes = np.arange(16, dtype=np.uint8)
    kept = effective_steps(steps, 0.0, 15.0)
    np.testing.assert_array_equal(done(codes, steps), done(codes, kept))


def test_zero_has_one_spelling():
    assert of(TransformStep("clip", -0.0, 8)) == of(TransformStep("clip", 0, 8.0))
