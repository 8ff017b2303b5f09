"""What every test runs under: property tests of a bounded count, one thread, test folders in memory, no needless waits.

How long an example takes is no finding on a busy machine. In CI the same examples are tried every time.
"""

import contextlib
import gc
import importlib
import logging
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.examples import SetTimes, count_examples
from tests.newer_python import judge_as_newest

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

# Every worker of pytest has a core to itself: more threads would wait for one another. Read when torch or numpy load.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS, MODELS = Path(__file__).resolve().parent, "tests/models"

# Tests keep hundreds of databases in their folders. In memory a commit costs nothing; on a busy disk it waits for all
# the others': `sync` there took five sixths of the wall time of the tests of the web API.
MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 4 << 30
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= LEAST_FREE_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

settings.register_profile(
    "skerry", deadline=None, max_examples=count_examples(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("skerry"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "skerry")

judge_as_newest()

# Who starts the tests in the background of a shell has them ignore Ctrl-C, and with them every process they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Nine thousand tests and the modules behind them stay for the whole run: no garbage collection need visit them.
gc.disable()
YOUNG_OBJECTS = 10_000  # made before a collection looks at them: most tests make fewer, and drop them all


@pytest.fixture(scope="session")
def postgres() -> Iterator["PostgresServer"]:
    """A real server; every test makes its own database in it."""
    from tests.postgres import PostgresServer, find_programs  # noqa: PLC0415 - SQLAlchemy, for these tests alone

    if find_programs() is None:
        pytest.skip("PostgreSQL is not installed: ./setup.sh dev installs it")
    with PostgresServer() as server:
        yield server


@pytest.fixture
def set_times(monkeypatch: pytest.MonkeyPatch) -> SetTimes:
    """Shorter times for a test, so that it waits for what it is about: `set_times(webhooks, LOOK_S=0.02)`."""

    def set_numbers(module: ModuleType, **numbers: float) -> None:
        for name, number in numbers.items():
            monkeypatch.setattr(module, name, number)

    return set_numbers


@pytest.fixture
def log_records() -> Iterator[list[logging.LogRecord]]:
    """What the root logger is told in a test.

    pytest's own capture is off: it visits each of some thousand loggers six times a test.
    """
    found: list[logging.LogRecord] = []
    keeper = logging.NullHandler()
    keeper.handle = found.append  # type: ignore[method-assign,assignment]
    logging.getLogger().addHandler(keeper)
    yield found
    logging.getLogger().removeHandler(keeper)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    return FolderScheduling(config, log) if config.getoption("dist") == "loadfile" else None


class FolderScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """The tests of one folder run in one worker, so that what they share is made once: facts, traced nets, bundles.

    Of two workers one takes all of the models: what they load of torch, scikit-learn and transformers is loaded once.
    """

    def _split_scope(self, nodeid: str) -> str:
        folder = nodeid.partition("::")[0].rpartition("/")[0]
        return MODELS if self.numnodes <= 2 and folder.startswith(MODELS) else folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the largest folders, so that all workers end together."""

    def place(item: pytest.Item) -> int:
        folder = item.nodeid.partition("::")[0].rpartition("/")[0]
        return 0 if folder.startswith(MODELS) else 1 if folder == "tests" else 2

    items.sort(key=place)


GENERATORS: dict[str, list[tuple[np.random.Generator, Mapping[str, object]]]] = {}  # of test modules, as imported


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test the draws of its module's generators from the start, whichever tests ran before it."""
    for generator, state in GENERATORS.get(getattr(getattr(item, "module", None), "__name__", ""), ()):
        generator.bit_generator.state = state


def pytest_collection(session: pytest.Session) -> None:
    """Load a share of the test modules ahead: what was never compiled is then compiled by one worker, not by each."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or [Path(each).resolve() for each in session.config.args] != [TESTS]:
        return
    modules = sorted(path for path in TESTS.rglob("test_*.py") if path.relative_to(TESTS).parts[0] != "live")
    for path in modules[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collection meets it once more, and tells of it
            importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


def pytest_collection_finish(session: pytest.Session) -> None:
    modules = {id(module): module for item in session.items if (module := getattr(item, "module", None)) is not None}
    for module in modules.values():
        drawn = [value for value in vars(module).values() if isinstance(value, np.random.Generator)]
        GENERATORS[module.__name__] = [(each, each.bit_generator.state) for each in drawn]
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    gc.freeze()
    gc.enable()
