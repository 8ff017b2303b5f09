"""One device and the bench it asks, for the stories of a question at the hub."""

import pytest

from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


@pytest.fixture
def bench(device: SimDevice) -> Bench:
    return Bench(device)
