"""What pages say is what is so: of ledgers, thresholds, requests, activity, and examples to type."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from cloud_hub.console.devices import count_uncovered
from cloud_hub.console.operation import plot_costs
from cloud_hub.storage.question_history import QuestionHistory, QuestionOutcome, QuestionRecord
from tests.cloud_hub.doubles.api_site import DEVICE, Site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = await Site(tmp_path, console=True).open()
    await opened.enrolled(DEVICE)
    yield opened
    await opened.close()


async def read_page(site: Site, path: str) -> str:
    token = site.token_file.read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(site.url + path, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.text()


async def test_an_example_of_a_rollout_names_a_version_that_this_hub_has(site: Site) -> None:
    page = await read_page(site, "/rollouts")
    listed = {f"{kept.name}@{kept.version}" for kept in site.context.versions.list_models()}
    assert any(f"skerry rollout start {name} " in page for name in listed)


async def test_activity_says_in_words_what_was_done(site: Site) -> None:
    token = site.token_file.read_text().strip()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        await session.post(site.url + "/v1/admin/invites", json={"device": "demo--cam-9"})
    assert "A one-time invite for a device" in await read_page(site, "/activity")


def question(seq: int, created_ms: int) -> QuestionRecord:
    return QuestionRecord(
        device=DEVICE, epoch="1", seq=seq, created_ms=created_ms, kept_ms=created_ms, ended_ms=0,
        outcome=QuestionOutcome.OPEN, reason="", model="m@1", policy="",
    )  # fmt: skip


def test_questions_after_the_newest_head_are_counted_as_not_covered_by_it() -> None:
    history = QuestionHistory([question(seq, 1000 * seq) for seq in range(1, 15)], [])
    assert count_uncovered({"heads": [{"at_ms": 500}, {"at_ms": 1500}]}, history) == 13
    assert count_uncovered({"heads": []}, history) == 0
    assert count_uncovered(None, history) == 0


def test_a_plot_has_no_line_of_a_model_that_was_not_used_in_its_days() -> None:
    lines = [
        {"day": "2026-11-28", "tenant": "", "model": model, "region": "", "amounts": {"requests": count}, "price": None}
        for model, count in (("used@1", 3), ("idle@1", 0))
    ]
    plot = plot_costs({"total": None, "costs": lines}, 20_785, 7)
    assert [each["label"] for each in plot["series"]] == ["used@1"]
