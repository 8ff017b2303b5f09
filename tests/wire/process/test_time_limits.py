"""A step that takes too long is named with its limit, and no log or status has a bare TimeoutError."""

import ast
import asyncio
import re
from pathlib import Path

import pytest

from tests.sources import SOURCES
from wire.process.time_limits import StepTimeoutError, describe_failure, limit_step

# Here an OSError is one of a connection, and may be a time-out.
CONNECTIONS = re.compile(
    r"wire/(transport|http)|edge_agent/(uplink|update|outputs|identity|doctor|system/http)|models/update"
)
BARE = re.compile(r"type\((\w+)\)\.__name__")


async def test_a_step_that_is_not_done_in_time_is_named_with_its_limit():
    with pytest.raises(StepTimeoutError, match=r"^TLS with a:1: no answer within 0\.01 s$"):
        async with limit_step("TLS with a:1", 0.01):
            await asyncio.sleep(5)


async def test_the_inner_of_two_limits_keeps_its_name():
    with pytest.raises(StepTimeoutError, match=r"^inner: "):
        async with limit_step("outer", 5.0), limit_step("inner", 0.01):
            await asyncio.sleep(5)


def test_a_failure_is_described_by_its_step_or_by_the_systems_own_words():
    assert describe_failure(TimeoutError(), "SUBSCRIBE", 5) == "SUBSCRIBE: no answer within 5 s"
    assert describe_failure(TimeoutError("timed out"), "GET /", 5) == "GET /: no answer within 5 s"
    assert describe_failure(StepTimeoutError("TCP to a:1", 3), "SUBSCRIBE", 5) == "TCP to a:1: no answer within 3 s"
    assert describe_failure(ConnectionResetError(104, "Connection reset by peer"), "x", 5) == "Connection reset by peer"
    assert describe_failure(OSError("the proxy refused"), "x", 5) == "the proxy refused"
    assert describe_failure(ValueError(), "GET /", 5) == "GET /: ValueError"


def catches(handler: ast.ExceptHandler, path: Path) -> bool:
    """Whether a handler may hold a time-out of a connection."""
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else set()
    return "TimeoutError" in names or ("OSError" in names and bool(CONNECTIONS.search(path.as_posix())))


def test_no_handler_of_time_outs_writes_the_bare_name_of_the_error():
    found, seen = [], 0
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler) and catches(node, path):
                seen += 1
                bare = BARE.search(ast.unparse(node))
                if bare and bare[1] == node.name:
                    found.append(f"{path}:{node.lineno}")
    assert seen > 40
    assert found == []
