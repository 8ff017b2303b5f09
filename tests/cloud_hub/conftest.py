"""One device and the bench it asks, and where a hub's state is: what holds for one database holds for the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_hub.core import scheduler
from cloud_hub.database.parts import DatabaseUrls
from simulations.postgres import PostgresServer
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


@pytest.fixture
def bench(device: SimDevice) -> Bench:
    return Bench(device)


@pytest.fixture
def quick_rechecks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that failed is asked again after an instant."""
    monkeypatch.setattr(scheduler, "RECHECK_BASE_S", 0.02)


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
