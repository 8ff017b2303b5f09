"""What the tests of the unmodified `openai` client share: a hub with a language model, and a client with a key."""

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from cloud_hub.registry.access import Scope
from tests.cloud_hub.doubles.language_site import LanguageSite, language_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[LanguageSite]:
    async with language_site(tmp_path) as opened:
        yield opened


@pytest.fixture
async def client(site: LanguageSite) -> AsyncIterator[openai.AsyncOpenAI]:
    token = site.api.key("acme", Scope.INFER)["Authorization"].removeprefix("Bearer ")
    async with openai.AsyncOpenAI(base_url=site.url, api_key=token, max_retries=0) as opened:
        yield opened
