"""When what web requests used is written: with something else, soon without it, and at the latest when the hub ends."""

from pathlib import Path

from cloud_hub.core.commands import StoreQuestion
from cloud_hub.storage import gateway
from cloud_hub.storage.costs import CostKind, Usage, read_costs_aside
from cloud_hub.storage.gateway import StoreGateway
from tests.cloud_hub.storage.test_costs import DAY
from tests.cloud_hub.storage.test_store import question
from tests.cloud_hub.storage.test_store_fault import Site

_NEVER_S = 3600.0


def _use(store: StoreGateway, requests: int) -> None:
    """As the hub does for each answer: gather, then flush."""
    for _ in range(requests):
        store.add_usages([Usage(DAY, "acme", "echo@1", "eu", {CostKind.REQUESTS: 1})])
        store.submit_job()


def _open_site(folder: Path) -> Site:
    site = Site()
    site.gateway.open(f"sqlite:///{folder}/hub.db")
    return site


def _billed(folder: Path) -> int:
    return sum(each.amount for each in read_costs_aside(f"sqlite:///{folder}/hub.db", DAY) if each.kind == "requests")


async def test_answers_of_a_moment_share_one_commit_of_their_bill(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gateway, "BILL_HELD_S", 0.05)
    site = _open_site(tmp_path)
    _use(site.gateway, 50)
    assert site.gateway.commits == 0
    await site.until_reported()
    assert (site.gateway.commits, _billed(tmp_path)) == (1, 50)
    await site.gateway.close()


async def test_a_question_takes_the_bill_along_and_no_timer_stays(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gateway, "BILL_HELD_S", _NEVER_S)
    site = _open_site(tmp_path)
    _use(site.gateway, 3)
    site.gateway.store_question(StoreQuestion(question(1)))
    site.gateway.submit_job()
    await site.until_reported()
    assert (site.gateway.commits, _billed(tmp_path)) == (1, 3)
    assert site.gateway._bill_timer is None
    await site.gateway.close()


async def test_a_hub_that_ends_writes_the_bill_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gateway, "BILL_HELD_S", _NEVER_S)
    site = _open_site(tmp_path)
    _use(site.gateway, 7)
    await site.gateway.close()
    assert _billed(tmp_path) == 7


async def test_what_must_be_billed_at_once_is(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gateway, "BILL_HELD_S", _NEVER_S)
    site = _open_site(tmp_path)
    _use(site.gateway, 2)
    site.gateway.submit_job(bill_at_once=True)
    await site.until_reported()
    assert _billed(tmp_path) == 2
    await site.gateway.close()
