"""One device and the bench it asks, and where a hub's state is: what holds for one database holds for the other."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_hub.core import scheduler
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.runtime import hub
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice
from tests.cloud_hub.doubles.fleet import Holder, Hub
from tests.examples import SetTimes
from tests.postgres import PostgresServer


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


@pytest.fixture
def bench(device: SimDevice) -> Bench:
    return Bench(device)


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an empty repository, `hub`, and its offline keys, `ring`: for `begun_hub`."""
    folder = tmp_path_factory.mktemp("begun")
    made = Hub(folder / "hub")
    made.install(Holder.begin(folder / "ring", made.export(hold=("policy", "models-echo"))))
    return folder


@pytest.fixture
def begun_hub(begun: Path, tmp_path: Path) -> Hub:
    """A hub at `tmp_path / "hub"` that signs all but root and targets, whose keys are at `tmp_path / "ring"`."""
    for name in ("hub", "ring"):
        shutil.copytree(begun / name, tmp_path / name, symlinks=True)
    return Hub(tmp_path / "hub")


@pytest.fixture(scope="session", autouse=True)
def quick_hubs() -> Iterator[None]:
    """Hubs look around every tenth of a second, and one that stops waits but an instant for requests to refuse."""
    before = hub.QUIET_S, hub.WAKE_S
    hub.QUIET_S, hub.WAKE_S = 0.02, 0.1
    yield
    hub.QUIET_S, hub.WAKE_S = before


@pytest.fixture
def quick_rechecks(set_times: SetTimes) -> None:
    """An engine that failed is asked again after an instant."""
    set_times(scheduler, RECHECK_BASE_S=0.02)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseUrls]:
    """An empty place for a hub's state: SQLite files in the test's folder, or a database of a real server."""
    if request.param == "sqlite":
        yield DatabaseUrls(tmp_path)
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create_database()
    yield DatabaseUrls(tmp_path, url)
    server.drop_database(url)
