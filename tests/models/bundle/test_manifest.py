import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.manifest import (
    NO_HUB,
    BundleError,
    HubModel,
    ModelKind,
    ParallelPlan,
    PipelineStage,
    check_manifest,
    decode_manifest,
    digest_edge,
    encode_manifest,
)
from models.bundle.measurements import (
    DomainFigures,
    DomainScore,
    GateFigures,
    LeakageRow,
    LeakKind,
    QualityMetric,
    RiskGuarantee,
)
from models.runtime.runner import echo_manifest
from wire.protocol.messages import ModelRef, SensitivityLevel, TensorDType

MANIFEST = echo_manifest()  # of format 2
HALF = msgspec.structs.replace(
    MANIFEST,
    format=3,
    hub=NO_HUB,
    hub_part="1" * 64,
    files=dict.fromkeys(("edge.onnx", "golden.npz"), "0" * 64),
)


def changed(**changes):
    return msgspec.structs.replace(MANIFEST, **changes)


def test_a_manifest_comes_back_as_it_was_written():
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST
    assert encode_manifest(MANIFEST) == encode_manifest(decode_manifest(encode_manifest(MANIFEST)))


def test_format_3_says_nothing_of_the_hub_but_its_digest():
    values = json.loads(encode_manifest(HALF))
    assert values["hub_part"] == "1" * 64
    assert not {"hub", "parallel"} & values.keys()
    assert decode_manifest(encode_manifest(HALF)) == HALF


def test_format_2_keeps_its_very_bytes():
    values = json.loads(encode_manifest(MANIFEST))
    assert values["hub"] == {}
    assert "hub_part" not in values


def test_the_digest_that_binds_a_hub_part_does_not_depend_on_the_hub_part():
    other = msgspec.structs.replace(HALF, hub_part="2" * 64)
    assert digest_edge(other) == digest_edge(HALF)
    assert digest_edge(msgspec.structs.replace(HALF, temperature=2.0)) != digest_edge(HALF)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("hub_part", {"hub_part": ""}),
        ("hub_part", {"hub_part": "x" * 64}),
        ("hub", {"hub": HubModel()}),
        ("parallel", {"parallel": ParallelPlan(tensor=2)}),
        ("files: hub", {"files": {**HALF.files, "hub": "0" * 64}}),
        ("edge, hub, codec or golden", {"files": {"edge.onnx": "0" * 64}}),
        ("format", {"format": 1}),
    ],
)
def test_an_impossible_value_of_format_3_is_named(key, values):
    with pytest.raises(BundleError, match=key):
        check_manifest(msgspec.structs.replace(HALF, **values))


def test_a_hub_part_in_a_manifest_of_format_2_is_refused():
    with pytest.raises(BundleError, match="hub_part is impossible"):
        check_manifest(changed(hub_part="1" * 64))


def test_its_reference_names_the_head():
    assert MANIFEST.ref == ModelRef("echo", 1, "echo", "pack4")
    assert MANIFEST.model == "echo@1"


@pytest.mark.parametrize("where", ["", "input", "gate", "calibration", "hub", "parallel", "target", "provenance"])
def test_an_unknown_key_is_refused_wherever_it_stands(where):
    values = json.loads(encode_manifest(MANIFEST))
    (values[where] if where else values)["surprise"] = 1
    with pytest.raises(BundleError, match="surprise"):
        decode_manifest(json.dumps(values).encode())


def test_a_newer_format_is_called_newer_even_if_nothing_else_is_understood():
    with pytest.raises(BundleError, match=r"format 4.*newer version"):
        decode_manifest(b'{"format": 4, "name": {"new": true}}')


def test_an_older_or_odd_format_is_not_guessed_at():
    with pytest.raises(BundleError, match="not a format of ours"):
        decode_manifest(b'{"format": 0}')
    with pytest.raises(BundleError, match=r"format 1.*older version: forge it again"):
        decode_manifest(b'{"format": 1, "name": "digits"}')


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_arbitrary_bytes_raise_a_bundle_error_of_one_line(data):
    with pytest.raises(BundleError) as caught:
        decode_manifest(data)
    assert "\n" not in str(caught.value)


def test_a_deeply_nested_manifest_is_refused():
    with pytest.raises(BundleError):
        decode_manifest(b'{"format": 2, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@given(st.data())
def test_one_damaged_value_never_gives_another_error(data):
    values = json.loads(encode_manifest(MANIFEST))
    key = data.draw(st.sampled_from(sorted(values)))
    values[key] = data.draw(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just([])
    )
    with suppress(BundleError):  # anything else fails the test
        decode_manifest(json.dumps(values).encode())


def measured(**changes):
    return changed(calibration=msgspec.structs.replace(MANIFEST.calibration, **changes))


LEAK = LeakageRow("0" * 64, LeakKind.RECONSTRUCTION, "", "ridge", "explained variance", 9, 0.2, 0.3, 0.1, 0.9)
TENTHS = tuple(tenth / 10 for tenth in range(1, 10))
EDGE_DOMAIN = DomainFigures(DomainScore.NOVELTY, 0.95, 0.05, 0.04, 0.02, 0.06, 500)


def domain(**changes) -> DomainFigures:
    return msgspec.structs.replace(EDGE_DOMAIN, score=DomainScore.ENERGY, **changes)


IMPOSSIBLE = {
    "name": changed(name="../echo"),
    "version": changed(version=0),
    "labels": changed(labels=("a", "a")),
    "labels ": changed(labels=("only",)),
    "input": changed(input=msgspec.structs.replace(MANIFEST.input, shape=(0,))),
    "input ": changed(input=msgspec.structs.replace(MANIFEST.input, shape=(2**20, 2**20))),
    "input  ": changed(input=msgspec.structs.replace(MANIFEST.input, low=1.0, high=1.0)),
    "features": changed(features=()),
    "features ": changed(features=MANIFEST.features * 2),
    "cut": changed(cut="a/b"),
    "codec": changed(codec="zip"),
    "fixed_bytes": changed(fixed_bytes=100),
    "fixed_bytes ": changed(fixed_bytes=2**20),
    "temperature": changed(temperature=0.0),
    "temperature ": changed(temperature=float("inf")),
    "calibration": changed(calibration=msgspec.structs.replace(MANIFEST.calibration, asked=1.5)),
    "calibration ": changed(calibration=msgspec.structs.replace(MANIFEST.calibration, threshold=float("nan"))),
    "calibration  ": measured(edge=1.5),
    "calibration   ": measured(metric=QualityMetric.RMSE, hub=float("inf")),
    "outputs": changed(outputs=9),
    "outputs ": changed(kind=ModelKind.REGRESSOR, labels=(), gate=GateFigures(tolerance=1.0), outputs=0),
    "labels  ": changed(kind=ModelKind.REGRESSOR, outputs=1),
    "hub_temperature": changed(hub_temperature=float("nan")),
    "gate": changed(kind=ModelKind.REGRESSOR, labels=(), outputs=1),
    "gate ": changed(gate=GateFigures(tolerance=float("nan"))),
    "gate  ": changed(gate=GateFigures(novelty_deciles=(0.1, 0.2))),
    "gate   ": changed(gate=GateFigures(novelty_deciles=TENTHS[::-1])),
    "gate    ": changed(gate=GateFigures(confidence_deciles=(*TENTHS[:8], float("nan")))),
    "gate     ": changed(gate=GateFigures(domain=EDGE_DOMAIN)),  # the graph has no such output
    "gate      ": changed(gate=GateFigures(hub_domain=EDGE_DOMAIN)),  # not the hub's score
    "gate       ": changed(gate=GateFigures(hub_domain=domain(threshold=float("nan")))),
    "gate        ": changed(gate=GateFigures(hub_domain=domain(low95=0.05))),
    "gate         ": changed(gate=GateFigures(hub_domain=domain(outside=-1))),
    "guarantee": changed(guarantee=RiskGuarantee(1.5, 0.9, 100, 0.8, "Clopper-Pearson")),
    "guarantee ": changed(guarantee=RiskGuarantee(0.05, 0.9, 0, 0.8, "Clopper-Pearson")),
    "leakage": changed(leakage=(msgspec.structs.replace(LEAK, score=float("nan")),)),
    "leakage ": changed(leakage=(msgspec.structs.replace(LEAK, chain="short"),)),
    "leakage  ": changed(leakage=(LEAK,) * 1001),
    "hub": changed(hub=msgspec.structs.replace(MANIFEST.hub, weights=())),
    "hub ": changed(hub=msgspec.structs.replace(MANIFEST.hub, weights=("hub.json",))),
    "parallel": changed(parallel=ParallelPlan((PipelineStage("a", -1, (3,)),))),
    "target": changed(target=msgspec.structs.replace(MANIFEST.target, precision="int3")),
    "target ": changed(target=msgspec.structs.replace(MANIFEST.target, providers=("/tmp/evil.so",))),
    "codec_file": changed(codec="ans"),
    "codec_file ": changed(codec_file="codec.bin"),
    "hub, codec or golden": changed(codec="ans", codec_file="codec.bin"),
    "codec or golden": changed(hub=msgspec.structs.replace(MANIFEST.hub, weights=("hub.safetensors", "more.bin"))),
    "files": changed(files={**MANIFEST.files, "edge.onnx": "abc"}),
    "edge, hub, codec or golden": changed(files={"edge.onnx": "0" * 64}),
}


@pytest.mark.parametrize("key", IMPOSSIBLE)
def test_an_impossible_value_is_named(key):
    with pytest.raises(BundleError, match=key.strip()):
        check_manifest(IMPOSSIBLE[key])


@pytest.mark.parametrize("plan", [ParallelPlan(style="dtensor"), ParallelPlan(shard={"w1*": 0})])
def test_the_division_that_is_gone_is_refused_with_what_to_use_instead(plan):
    gone = "parallel: style and shard (dtensor) are gone: leave both out, `tensor` alone divides the weights"
    with pytest.raises(BundleError) as caught:
        check_manifest(changed(parallel=plan))
    assert str(caught.value) == f"manifest.json: {gone}"


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "..", ".hidden", "a\0b", "x" * 65, "", "Ünï", "manifest.json"]
)
def test_a_file_name_cannot_leave_the_folder(name):
    with pytest.raises(BundleError, match="files"):
        check_manifest(changed(files={**MANIFEST.files, name: "0" * 64}))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": TensorDType.FP32},
        {"low": -1.0},
        {"high": 16.0},
        {"shape": ()},
        {"name": "../x"},
        {"low": 3.0, "high": 3.0},
    ],
)
def test_a_feature_the_codec_cannot_carry_is_refused(change):
    feature = msgspec.structs.replace(MANIFEST.features[0], **change)
    with pytest.raises(BundleError, match="feature"):
        check_manifest(changed(features=(feature,)))


def test_a_regressor_needs_no_labels():
    check_manifest(changed(kind=ModelKind.REGRESSOR, labels=(), outputs=1, gate=GateFigures(tolerance=0.5)))


def test_a_feature_states_its_label():
    assert MANIFEST.features[0].level is SensitivityLevel.P2


def test_all_that_was_measured_comes_back():
    full = changed(
        gate=GateFigures(
            novelty_output=True,
            novelty_deciles=TENTHS,
            confidence_deciles=(1.0,) * 9,
            domain=EDGE_DOMAIN,
            hub_domain=domain(threshold=-7.5, recall=0.6, outside=100),
        ),
        guarantee=RiskGuarantee(0.05, 0.9, 100, 0.8, "Clopper-Pearson"),
        leakage=(LEAK,),
        parallel=ParallelPlan((PipelineStage("first", 100, (3, 4)),)),
    )
    check_manifest(full)
    assert decode_manifest(encode_manifest(full)) == full


def test_a_bundle_of_before_promises_had_groups_opens():
    plain = changed(guarantee=RiskGuarantee(0.05, 0.9, 100, 0.8, "Clopper-Pearson"))
    assert b"groups" not in encode_manifest(plain)
    assert b"asked_limit" not in encode_manifest(plain)
    opened = decode_manifest(encode_manifest(plain))
    assert opened.guarantee == plain.guarantee
    assert (opened.calibration.groups, opened.calibration.asked_limit) == (0, 1.0)


@pytest.mark.parametrize("value", [{"groups": -1}, {"asked_limit": 1.5}, {"asked_limit": float("nan")}])
def test_an_impossible_promise_is_refused(value):
    figures = msgspec.structs.replace(MANIFEST.calibration, **value)
    with pytest.raises(BundleError, match="calibration"):
        check_manifest(changed(calibration=figures))
    more = RiskGuarantee(0.05, 0.9, 100, 0.8, "Clopper-Pearson", groups=101)
    with pytest.raises(BundleError, match="guarantee"):
        check_manifest(changed(guarantee=more))
