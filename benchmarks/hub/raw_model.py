"""Child process: the hub's model alone, one question at a time; prints microseconds, p50."""

import sys

from benchmarks.harness.figures import US, find_median, time_each
from cloud_hub.engine.torch import TorchEngine
from models.bundle.bundle import open_edge_part

if __name__ == "__main__":
    engine = TorchEngine(open_edge_part(sys.argv[1]))
    engine.start()
    engine.warm()
    batch = [engine.sample()]
    print(find_median(time_each(lambda: engine.infer(batch), 2000)) * US, flush=True)
    engine.stop()
