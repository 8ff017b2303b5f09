"""A browser for each test, and a hub's web API with the console on a free local port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cloud_hub.doubles.api_site import Site
from tests.live.doubles.chromium import Chromium, find_chromium, open_chromium


@pytest.fixture
async def chromium() -> AsyncIterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not installed: ./setup.sh dev installs it")
    async with open_chromium(program) as browser:
        yield browser


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = await Site(tmp_path, console=True).open()
    yield opened
    await opened.close()
