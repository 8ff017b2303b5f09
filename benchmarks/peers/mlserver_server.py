"""MLServer with the benchmark's model, batches to 16, one batch at a time. `python mlserver_server.py PORT`.

The model runs in a thread, so that MLServer's own event loop is free meanwhile.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class MlServerCostModel(MLModel):
    async def load(self):
        self.one = asyncio.Lock()
        return True

    async def predict(self, payload):
        values = NumpyCodec.decode_input(payload.inputs[0])
        async with self.one:
            await asyncio.to_thread(time.sleep, 0.005 + 0.0002 * len(values))
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("output", values[:, :1])])


def main(port):
    folder = Path(tempfile.mkdtemp(prefix="mlserver-"))
    ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    (folder / "settings.json").write_text(
        json.dumps({**ports, "host": "127.0.0.1", "parallel_workers": 0, "debug": False})
    )
    model = {
        "name": "cost",
        "implementation": "mlserver_server.MlServerCostModel",
        "max_batch_size": 16,
        "max_batch_time": 0.005,
    }
    (folder / "model-settings.json").write_text(json.dumps(model))
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    os.execv(str(Path(sys.executable).parent / "mlserver"), ["mlserver", "start", str(folder)])


if __name__ == "__main__":
    main(int(sys.argv[1]))
