"""Child process: the hub's model alone, one question at a time; prints microseconds, p50."""

import sys

from benchmarks.harness.figures import US, p50, time_each
from cloud_hub.engine.torch import LocalEngine
from models.bundle.bundle import open_bundle

if __name__ == "__main__":
    engine = LocalEngine(open_bundle(sys.argv[1]))
    engine.start()
    engine.warm()
    batch = [engine.sample()]
    print(p50(time_each(lambda: engine.infer(batch), 2000)) * US, flush=True)
    engine.stop()
