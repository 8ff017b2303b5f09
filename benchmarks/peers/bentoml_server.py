"""BentoML with the benchmark's model, batches to 16, one worker. `python bentoml_server.py PORT`."""

import os
import sys
import time
from pathlib import Path

import bentoml


@bentoml.service(workers=1, traffic={"timeout": 30})
class BentoCostService:
    @bentoml.api(batchable=True, batch_dim=0, max_batch_size=16, max_latency_ms=1000)
    def predict(self, input: list[list[float]]) -> list[float]:
        time.sleep(0.005 + 0.0002 * len(input))
        return [values[0] for values in input]


if __name__ == "__main__":
    os.chdir(Path(__file__).parent)
    words = ["bentoml", "serve", "bentoml_server:BentoCostService", "--host", "127.0.0.1", "--port", sys.argv[1]]
    os.environ["BENTOML_DO_NOT_TRACK"] = "1"
    os.execv(str(Path(sys.executable).parent / "bentoml"), words)
