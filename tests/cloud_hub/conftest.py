"""One device and the bench it asks, for the stories of a question at the hub."""

import pytest

from tests.cloud_hub.bench import Bench
from tests.cloud_hub.devices import SimDevice


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


@pytest.fixture
def bench(device: SimDevice) -> Bench:
    return Bench(device)
