"""The bill: every answer counted once, in the commit that stores it; prices put on exact sums; on both databases."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.core.commands import LOCAL, BatchItem, QuestionEnding, QuestionKey, StoredQuestion
from cloud_hub.core.queues import Batch
from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.database.tables import costs
from cloud_hub.engine.base import WorkItem
from cloud_hub.storage.costs import (
    DAY_MS,
    KEPT_DAYS,
    CostEntry,
    CostKind,
    Usage,
    describe_batch,
    merge_usages,
    read_costs_aside,
)
from cloud_hub.storage.jobs import StoreError, StoreJob
from cloud_hub.storage.prices import PriceList, UnitPrices, write_bill
from cloud_hub.storage.store import Store
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice
from wire.protocol.messages import RefusalReason

DAY = 20_000
AT_MS = DAY * DAY_MS + 5


@pytest.fixture
def store(urls: DatabaseUrls) -> Iterator[Store]:
    store = Store.open(urls.questions)
    yield store
    store.close()


def question(seq: int, device: str = "acme--d1") -> StoredQuestion:
    return StoredQuestion(
        QuestionKey(device, 7, seq), "echo@1", "ab", AT_MS, AT_MS, b"d" * 32, b"f" * 32, b"s", AT_MS + DAY_MS
    )


def answered(seq: int, device: str = "acme--d1") -> QuestionEnding:
    key = question(seq, device).key
    return QuestionEnding(key, AT_MS, b"v", model="echo@1", region="eu", engine_us=1500, question_bytes=640)


def amounts(urls: DatabaseUrls, tenant: str | None = None) -> dict[tuple[str, str], int]:
    return {(each.tenant, each.kind): each.amount for each in read_costs_aside(urls.questions, DAY, tenant)}


def test_a_verdict_is_billed_in_its_own_commit_and_a_refusal_is_not(store: Store, urls: DatabaseUrls):
    refused = QuestionEnding(question(3).key, AT_MS, refusal=RefusalReason.ENGINE)
    keeps = [question(1), question(2, "clinic--d1"), question(3)]
    store.apply_jobs([StoreJob(keeps=keeps, endings=[answered(1), answered(2, "clinic--d1"), refused])])
    assert amounts(urls) == {
        ("acme", "requests"): 1,
        ("acme", "engine_us"): 1500,
        ("acme", "bytes"): 640,
        ("clinic", "requests"): 1,
        ("clinic", "engine_us"): 1500,
        ("clinic", "bytes"): 640,
    }
    assert set(amounts(urls, "clinic")) == {("clinic", kind) for kind in ("requests", "engine_us", "bytes")}


def test_an_answer_that_comes_twice_is_billed_once(store: Store, urls: DatabaseUrls):
    store.apply_jobs([StoreJob(keeps=[question(1)], endings=[answered(1)])])
    later = QuestionEnding(question(1).key, AT_MS + 9, b"w", model="echo@1", region="eu", engine_us=9, question_bytes=9)
    store.apply_jobs([StoreJob(endings=[later])])
    assert amounts(urls)["acme", "requests"] == 1
    assert amounts(urls)["acme", "engine_us"] == 1500


def test_what_was_not_committed_is_not_billed(store: Store, urls: DatabaseUrls):
    store.apply_jobs([StoreJob(keeps=[question(1)])])
    with pytest.raises(StoreError):  # the key is there already, so the whole transaction fails
        store.apply_jobs([StoreJob(keeps=[question(1)], endings=[answered(1)])])
    assert amounts(urls) == {}


def test_two_hubs_add_to_the_same_sums(store: Store, urls: DatabaseUrls):
    other = Store.open(urls.questions)
    used = Usage(DAY, "acme", "chat", "eu", {CostKind.TOKENS_OUT: 5, CostKind.TOKENS_CACHED: 0})
    for each in (store, other, store):
        each.apply_jobs([StoreJob(used=[used, used])])
    other.close()
    assert amounts(urls) == {("acme", "tokens_out"): 30}


def test_what_waits_for_a_database_that_is_down_is_one_row_of_each_kind_and_nothing_is_lost():
    used = [Usage(DAY, "acme", "chat", "eu", {CostKind.REQUESTS: 1, CostKind.TOKENS_OUT: n}) for n in range(100)]
    assert merge_usages([*merge_usages(used), used[7]]) == [
        Usage(DAY, "acme", "chat", "eu", {CostKind.REQUESTS: 101, CostKind.TOKENS_OUT: 4957})
    ]


def test_sums_are_kept_as_long_as_bills_are_written(store: Store, urls: DatabaseUrls):
    days = [DAY, DAY + KEPT_DAYS, DAY + KEPT_DAYS + 1]
    for day in days:
        store.apply_jobs([StoreJob(used=[Usage(day, "acme", "chat", "eu", {CostKind.REQUESTS: 1})])])
    store.apply_jobs([StoreJob(purge_ms=(DAY + KEPT_DAYS + 1) * DAY_MS)])
    assert [each.day for each in read_costs_aside(urls.questions, 0)] == days[1:]


def test_the_engines_time_of_a_batch_is_shared_by_weight(device: SimDevice, bench: Bench):
    for seq in (1, 2, 3):
        bench.ask(device, seq)
    bench.settle()
    with bench.store._engine.connect() as connection:
        sums = {row.kind: row.amount for row in connection.execute(costs.select())}
    assert sums["requests"] == 3
    assert sums["engine_us"] <= 3 * 1000  # the bench's engine takes 1 ms for a batch, of one question or of three
    assert sums["bytes"] > 3 * 196  # at least the frame's fixed parts


def web_item(seq: int, weight: float, request_bytes: int = 0) -> BatchItem:
    key = QuestionKey(LOCAL, 1, seq)
    return BatchItem(key, WorkItem(), 0.0, weight=weight, tenant="acme", request_bytes=request_bytes)


def test_web_requests_of_several_samples_count_once_and_devices_are_billed_with_their_verdicts():
    questions = BatchItem(question(1).key, WorkItem(), 0.0, weight=2.0)
    batch = Batch(1, "echo@1", (web_item(0, 1.0, 321), web_item(1, 1.0), questions), 0)
    used = describe_batch(batch, 0.004, "eu", DAY * 86_400.0)
    assert [each.amounts for each in used] == [
        {CostKind.REQUESTS: 1, CostKind.ENGINE_US: 1000, CostKind.BYTES: 321},
        {CostKind.REQUESTS: 0, CostKind.ENGINE_US: 1000, CostKind.BYTES: 0},
    ]
    assert {(each.day, each.tenant, each.model, each.region) for each in used} == {(DAY, "acme", "echo@1", "eu")}


def test_a_bill_prices_a_language_model_by_its_own_list_and_all_others_by_the_default():
    prices = PriceList(
        "EUR",
        UnitPrices(request=0.5, engine_s=2.0),
        {"chat": UnitPrices(tokens_in=1.0, tokens_cached=0.1, tokens_out=4.0)},
    )
    entries = [
        CostEntry(DAY, "acme", "echo@1", "eu", "requests", 4),
        CostEntry(DAY, "acme", "echo@1", "eu", "engine_us", 500_000),
        CostEntry(DAY, "acme", "chat", "eu", "requests", 7),
        CostEntry(DAY, "acme", "chat", "eu", "tokens_in", 2_000_000),
        CostEntry(DAY, "acme", "chat", "eu", "tokens_cached", 1_000_000),
        CostEntry(DAY, "acme", "chat", "eu", "tokens_out", 500_000),
    ]
    assert [(line.model, line.price) for line in write_bill(entries, prices)] == [("chat", 4.1), ("echo@1", 3.0)]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.sampled_from(list(CostKind)), st.integers(0, 10**9)),
        unique_by=lambda each: each[:3],
    )
)
def test_no_amount_is_lost_between_the_sums_and_the_bill(told):
    entries = [CostEntry(day, tenant, "m", "r", kind.value, amount) for day, tenant, kind, amount in told]
    lines = write_bill(entries, PriceList())
    assert sum(sum(line.amounts.values()) for line in lines) == sum(each.amount for each in entries)
