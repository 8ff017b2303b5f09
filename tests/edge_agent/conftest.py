"""Policies are compiled in this process: `system/test_policy_compiler.py` starts the one that does it on a device."""

from collections.abc import Iterator, Sequence

import pytest

from edge_agent.system import policy_layers
from edge_agent.system.policy_compiler import CompiledDocument
from edge_agent.system.policy_worker import compile_text


def compile_here(texts: Sequence[bytes]) -> tuple[CompiledDocument, ...]:
    return tuple(compile_text(text) for text in texts)


@pytest.fixture(scope="session", autouse=True)
def policies_compiled_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_layers, "compile_documents", compile_here)
        yield
