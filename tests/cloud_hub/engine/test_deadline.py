"""The time limit of an engine that loads in one process: what is late is refused, and leaves nothing behind."""

import threading
from pathlib import Path

import pytest

from cloud_hub.engine.base import EchoEngine, Engine, EngineError, EngineState
from cloud_hub.engine.deadline import start_engine
from cloud_hub.engine.types import make_model_card
from cloud_hub.serving.bundles import BundleFolders
from cloud_hub.system.settings import HubSettings
from models.bundle.manifest import BundleError
from models.runtime.runner import echo_manifest
from tests.cloud_hub.doubles.versions import make_version

PATIENT_S = 60.0
CARD = make_model_card(echo_manifest())


class StuckEngine(EchoEngine):
    """An engine whose weights do not arrive until `release` is set."""

    def __init__(self) -> None:
        super().__init__(CARD)
        self.release, self.gone = threading.Event(), threading.Event()

    def start(self) -> None:
        assert self.release.wait(PATIENT_S)
        super().start()

    def stop(self) -> None:
        super().stop()
        self.gone.set()


def test_an_engine_that_starts_in_time_is_handed_over():
    engine = start_engine(lambda: EchoEngine(CARD), CARD.name, PATIENT_S)
    assert engine.health().state is EngineState.READY


def test_an_engine_that_hangs_while_it_loads_is_refused_in_one_line_and_stopped_once_it_ends():
    stuck = StuckEngine()
    with pytest.raises(EngineError, match=r"^echo@1: was not loaded within 0.05 s: set a larger ready_s[^\n]*$"):
        start_engine(lambda: stuck, CARD.name, 0.05)
    assert not stuck.gone.is_set()
    stuck.release.set()
    assert stuck.gone.wait(PATIENT_S), "what it loaded too late stays in memory"


@pytest.mark.parametrize("error", [BundleError("echo@1: no weights"), EngineError("echo@1: no card"), OSError("disk")])
def test_what_is_wrong_with_a_version_is_told_as_it_is(error):
    def make() -> Engine:
        raise error

    with pytest.raises(type(error), match=str(error)):
        start_engine(make, CARD.name, PATIENT_S)


def test_the_version_before_serves_while_the_new_one_hangs(tmp_path):
    for version in (1, 2):
        make_version(tmp_path / f"echo@{version}", version=version)
    stuck, told = StuckEngine(), dict[Path, str]()

    def open_path(path: Path) -> Engine:
        if path.name == "echo@2":
            return start_engine(lambda: stuck, path.name, 0.05)
        return start_engine(lambda: EchoEngine(CARD), path.name, PATIENT_S)

    engines = BundleFolders([], tmp_path, HubSettings(max_loaded=1), open_path).open_initial(
        frozenset(), told.__setitem__
    )
    assert [engine.card.name for engine in engines] == ["echo@1"]
    assert told[tmp_path / "echo@2"].startswith("echo@2: was not loaded within 0.05 s")
    stuck.release.set()
    assert stuck.gone.wait(PATIENT_S)
