"""MLServer with the ONNX graphs of a folder, one model for each. `python mlserver_onnx.py PORT FOLDER`.

`FOLDER/NAME.onnx` is served as NAME, in one process and without batches of MLServer's own.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse, MetadataTensor

DATATYPES = {"tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(int64)": "INT64"}


class OnnxModel(MLModel):
    async def load(self):
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri, providers=["CPUExecutionProvider"])
        self.inputs = [describe(value) for value in self.session.get_inputs()]
        self.outputs = [describe(value) for value in self.session.get_outputs()]
        return True

    async def predict(self, payload):
        columns = {each.name: NumpyCodec.decode_input(each) for each in payload.inputs}
        found = self.session.run(None, columns)
        outputs = [NumpyCodec.encode_output(spec.name, array) for spec, array in zip(self.outputs, found, strict=True)]
        return InferenceResponse(model_name=self.name, outputs=outputs)


def describe(value):
    shape = [size if isinstance(size, int) else -1 for size in value.shape]
    return MetadataTensor(name=value.name, datatype=DATATYPES[value.type], shape=shape)


def main(port, graphs):
    folder = Path(tempfile.mkdtemp(prefix="mlserver-"))
    ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    (folder / "settings.json").write_text(
        json.dumps({**ports, "host": "127.0.0.1", "parallel_workers": 0, "debug": False})
    )
    for graph in sorted(graphs.glob("*.onnx")):
        model = {"name": graph.stem, "implementation": "mlserver_onnx.OnnxModel"}
        (folder / graph.stem).mkdir()
        (folder / graph.stem / "model-settings.json").write_text(
            json.dumps({**model, "parameters": {"uri": str(graph.resolve())}})
        )
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    os.execv(str(Path(sys.executable).parent / "mlserver"), ["mlserver", "start", str(folder)])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
