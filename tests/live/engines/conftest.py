"""Other people's servers, unmodified: vLLM on this machine's processor, and MLServer. `make live-llm` runs these.

They need environments of gigabytes and minutes to start, so nothing here is collected unless it is asked for.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.engines.llama import write_llama
from tests.live.engines.vllm import VllmServer

collect_ignore_glob = [] if os.environ.get("SKERRY_LIVE_LLM") else ["test_*.py"]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def servers(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VllmServer]]:
    """Two vLLM servers of the same model, ready."""
    folder = tmp_path_factory.mktemp("servers")
    found = [VllmServer(llama, folder / f"{number}.log") for number in range(2)]
    try:
        for server in found:
            server.wait_ready()
        yield found
    finally:
        for server in found:
            server.kill()
