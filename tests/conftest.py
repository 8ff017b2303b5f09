"""Property tests on a busy machine: how long an example takes is no finding; the same examples every time in CI."""

import gc
import os
import signal

from hypothesis import HealthCheck, settings

# Every worker of pytest has a core to itself: more threads would wait for one another. Read when torch or numpy load.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("skerry", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("skerry"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "skerry")

# Who starts the tests in the background of a shell has them ignore Ctrl-C, and with them every process they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Six thousand tests and the modules behind them stay for the whole run: no garbage collection need visit them.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
