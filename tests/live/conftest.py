"""What the live tests share: the demo's bundle, and a stage of real processes that is cleared away."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models.bundle import Bundle
from models.forge.demo import cached_demo_bundle
from simulations.demo_command import cache_folder
from simulations.stage import Stage


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    return cached_demo_bundle(cache_folder())


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with Stage(tmp_path) as stage:
        yield stage
