"""`skerry models layout`: a model repository for Triton, what is there already, and bundles that are not ONNX."""

import json

import pytest
from onnx import TensorProto
from typer.testing import CliRunner

from models.bundle.manifest import BundleError
from models.cli.layout import write_triton_config
from models.cli.models import app
from tests.cloud_hub.engine.test_bundle import bundle
from tests.cloud_hub.engine.test_remote import PICTURE, TAIL_NET, WHOLE_NET, golden_bundle, net
from wire.process.exit_codes import ExitCode, ExitError

CONFIG = """name: "digits-1-tail"
backend: "onnxruntime"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [ 2, 4, 4 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ 10 ] }]
"""


def lay_out(*words: str) -> str:
    found = CliRunner().invoke(app, ["layout", *words, "--for", "triton"], catch_exceptions=True)
    if isinstance(found.exception, ExitError):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.output


def test_both_graphs_lie_as_triton_loads_them_and_the_hubs_table_is_printed(tmp_path):
    out = tmp_path / "models"
    said = lay_out(str(golden_bundle(tmp_path)), str(out), "--max-batch", "8")
    assert '[[remote]]\nmodel = "digits@1"\n' in said
    assert 'tail = "digits-1-tail"\nwhole = "digits-1-whole"\n' in said
    files = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert files.pop("digits-1-tail/config.pbtxt").decode() == CONFIG
    assert b"dims: [ 1, 8, 8 ]" in files.pop("digits-1-whole/config.pbtxt")
    assert files == {"digits-1-tail/1/model.onnx": TAIL_NET, "digits-1-whole/1/model.onnx": WHOLE_NET}


def test_the_table_is_json_where_that_is_asked_for(tmp_path):
    told = json.loads(lay_out(str(golden_bundle(tmp_path)), str(tmp_path / "models"), "--json"))
    assert (told["model"], told["tail"], told["whole"]) == ("digits@1", "digits-1-tail", "digits-1-whole")


def test_models_that_are_there_are_not_touched(tmp_path):
    made, out = golden_bundle(tmp_path), tmp_path / "models"
    (out / "digits-1-tail").mkdir(parents=True)
    with pytest.raises(ExitError, match="is there already") as stop:
        lay_out(str(made), str(out))
    assert stop.value.code is ExitCode.USAGE
    assert list((out / "digits-1-tail").iterdir()) == []


def test_a_bundle_whose_hub_half_is_not_onnx_is_one_line(tmp_path):
    with pytest.raises(ExitError, match=r"^digits@1: its hub half is graphs of this project, not ONNX") as stop:
        lay_out(str(bundle(tmp_path).path), str(tmp_path / "models"))
    assert stop.value.code is ExitCode.MODEL
    assert not (tmp_path / "models").exists()


def test_a_graph_says_its_type_and_no_graph_is_refused():
    said = write_triton_config("words", net(PICTURE, 1, element=TensorProto.INT64), 32)
    assert 'input [{ name: "x" data_type: TYPE_INT64 dims: [ 1, 8, 8 ] }]' in said
    with pytest.raises(BundleError):
        write_triton_config("words", b"no graph", 32)
