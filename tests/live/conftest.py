"""What the live tests share: the demo's bundle, and a stage of real processes that is searched and cleared away."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from models.bundle.bundle import Bundle
from models.forge.pipeline.demo import load_demo_bundle, locate_cache_folder
from simulations.processes import ProcessHarness
from tests.live.doubles.defects import DefectFinder
from tests.live.doubles.fleet import CANARY


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    return load_demo_bundle(locate_cache_folder())


@pytest.fixture(scope="session")
def defects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DefectFinder]:
    """Of all hubs and agents that tests start; what runs for several tests is read once more when all have ended."""
    finder = DefectFinder(tmp_path_factory.getbasetemp())
    yield finder
    assert finder.find_new() == []


@pytest.fixture(autouse=True)
def no_defect_is_logged(defects: DefectFinder) -> Iterator[None]:
    """A hub or an agent that logs a defect fails the test that ran meanwhile, whatever it answered."""
    yield
    assert defects.find_new() == []


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[ProcessHarness]:
    async with ProcessHarness(tmp_path) as stage:
        yield stage
    files = (path for path in tmp_path.rglob("*") if path.is_file())
    assert [str(path) for path in files if CANARY.encode() in path.read_bytes()] == [], (
        "files that hold a planted string"
    )
