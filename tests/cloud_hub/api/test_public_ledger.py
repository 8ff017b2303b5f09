"""The ledger log over HTTP: public checkpoints and proofs; a device's heads only for callers who may see it."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_hub.database.connection import IN_MEMORY
from cloud_hub.registry.access import Scope
from cloud_hub.storage.ledger_log import LedgerLog
from cloud_hub.storage.ledger_service import LedgerBackend, LedgerLogService
from tests.cloud_hub.doubles.api_site import Site
from tests.cloud_hub.storage.test_ledger_log import HUB_KEY, KEYS, received
from wire.ledger.checkpoint import open_checkpoint
from wire.ledger.merkle import TreeHead, hash_leaf, verify_consistency, verify_inclusion
from wire.process.logging import JsonLog


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    log = LedgerLog.open(IN_MEMORY, 0)
    log.append([received(n) for n in range(1, 8)])
    clerk = LedgerLogService(log, LedgerBackend("hub-1", KEYS.signing, lambda *_: None, lambda _: 0, JsonLog()))
    running = asyncio.create_task(clerk.run())
    opened_site = await Site(tmp_path, clerk=clerk).open()
    yield opened_site
    await opened_site.close()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def raw(values: list[str]) -> list[bytes]:
    return [base64.b64decode(value) for value in values]


async def test_anybody_checks_that_the_log_only_grew(site: Site):
    status, text = await site.ask("GET", "/v1/ledger/checkpoint")
    assert status == 200
    now = open_checkpoint(text, HUB_KEY).tree
    assert now.size == 7
    log = LedgerLog.open(IN_MEMORY, 0)
    log.append([received(n) for n in (1, 2, 3)])
    _, proof = await site.ask("GET", "/v1/ledger/consistency?first=3&second=7")
    assert verify_consistency(log.tree(), now, raw(proof["proof"]))
    _, proof = await site.ask("GET", "/v1/ledger/inclusion?index=2&size=7")
    leaf = log.leaf_at(2)
    assert leaf is not None
    assert verify_inclusion(now, 2, hash_leaf(leaf.encode_leaf()), raw(proof["proof"]))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("consistency?first=0&second=7", 404), ("consistency?first=8&second=7", 404),
        ("consistency?first=1&second=8", 404), ("consistency?first=1", 400), ("consistency?first=-1&second=7", 400),
        ("consistency?first=1e3&second=7", 400), ("inclusion?index=7&size=7", 404), ("inclusion?index=0&size=0", 404),
        ("inclusion?index=x&size=7", 400), (f"inclusion?index={'9' * 40}&size=7", 400), ("inclusion", 400),
    ],
)  # fmt: skip
async def test_wrong_sizes_are_a_plain_400_and_a_proof_that_there_is_not_404(site: Site, query: str, expected: int):
    status, body = await site.ask("GET", f"/v1/ledger/{query}")
    assert status == expected, body


async def test_a_devices_heads_come_with_their_proofs_to_who_may_see_it(site: Site):
    path = "/v1/admin/ledger/demo--d1"
    assert (await site.ask("GET", path))[0] == 401
    assert (await site.ask("GET", path, headers=site.key("clinic", Scope.READ)))[0] == 404
    for headers in (site.admin, site.key("demo", Scope.READ)):
        status, body = await site.ask("GET", path, headers=headers)
        assert status == 200
        assert [head["entries"] for head in body["heads"]] == list(range(1, 8))
    size, root = body["checkpoint"].split("\n")[1:3]
    assert TreeHead(int(size), base64.b64decode(root)) == open_checkpoint(body["checkpoint"], HUB_KEY).tree
    assert (await site.ask("GET", f"{path}?after=5", headers=site.admin))[1]["heads"][0]["index"] == 6


async def test_a_hub_without_a_log_says_so(tmp_path: Path):
    site = await Site(tmp_path).open()
    assert (await site.ask("GET", "/v1/ledger/checkpoint"))[0] == 404
    await site.close()
