"""Updates and installations: their first loads are made in this process, unless a test asks for the child."""

import pytest

from edge_agent.update import worker
from models.verification.sandbox import run_first_load
from tests.models.doubles.first_load import load_here


@pytest.fixture(autouse=True)
def first_loads_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "run_first_load", load_here)


@pytest.fixture
def first_loads_in_a_child(monkeypatch: pytest.MonkeyPatch, first_loads_here: None) -> None:
    monkeypatch.setattr(worker, "run_first_load", run_first_load)
