"""A pytest plugin: records which test runs which line of the code that decides, one data file for each process,
and the names of all tests.

`-p tests.mutation.coverage_plugin` with MUTATION_COVERAGE naming a folder. Coverage's own contexts do the recording.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from tests import ROOT
from tests.mutation.scope import SCOPE

_RECORDERS: list[coverage.Coverage] = []
_NAMES: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    if config.option.numprocesses and not hasattr(config, "workerinput"):
        return  # this process hands the tests out and runs none
    folder = Path(os.environ["MUTATION_COVERAGE"])
    recorder = coverage.Coverage(
        data_file=str(folder / f"coverage.{os.getpid()}"),
        include=[str(ROOT / pattern) for pattern in SCOPE],
        config_file=False,
        messages=False,
    )
    recorder.set_option("run:disable_warnings", ["no-data-collected"])  # a process may run none of this code
    recorder.start()
    _RECORDERS.append(recorder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    for recorder in _RECORDERS:
        recorder.switch_context(item.nodeid)
    _NAMES.append(item.nodeid)
    return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    del config
    for recorder in _RECORDERS:
        recorder.stop()
        recorder.save()
        names = Path(os.environ["MUTATION_COVERAGE"]) / f"names.{os.getpid()}"
        names.write_text("\n".join(_NAMES), encoding="utf-8")
