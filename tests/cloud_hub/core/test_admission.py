"""Admission control: tenants, priorities, rate limits, and retry times of refused requests."""

import numpy as np
import pytest

from cloud_hub.core.admission import MAX_TENANTS, OVERLOAD_LAG_S
from cloud_hub.core.commands import AnswerWebSample
from cloud_hub.core.web_requests import InferOptions
from cloud_hub.system.settings import HubSettings
from policies.serving.admission import RefuseQuestion
from policies.serving.batching import BatchCost
from simulations.nodes.plain_envelopes import PlainEnvelopes
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import CARD
from tests.cloud_hub.stories.test_core_machine import PlainDevice
from wire.protocol.messages import Refusal, RefusalReason

SAMPLE = [np.zeros(10, np.float32)]


@pytest.fixture
def bench() -> Bench:
    return Bench(*[PlainDevice(f"t{n}--d") for n in range(4)], envelopes=PlainEnvelopes(), max_queued=40)


def web(bench: Bench, request: int, **wish) -> RefuseQuestion | None:
    return bench.core.queue_web_request(request, CARD.name, SAMPLE, bench.now, InferOptions(**wish))


def fill(bench: Bench, count: int, **wish) -> list[RefuseQuestion]:
    asked = [web(bench, number, **wish) for number in range(1000, 1000 + count)]
    return [refused for refused in asked if refused is not None]


def test_one_tenant_cannot_take_the_places_of_the_others(bench):
    refused = fill(bench, 100, tenant="greedy", priority=1)
    assert {each.reason for each in refused} == {RefusalReason.RATE}
    assert web(bench, 1, tenant="modest", priority=1) is None


def test_devices_and_web_callers_of_one_tenant_share_its_places(bench):
    fill(bench, 100, tenant="t1", priority=1)
    bench.ask(bench.devices["t1--d"], 1, priority=1)
    bench.ask(bench.devices["t2--d"], 1, priority=1)
    bench.commit()
    assert [(device, note.reason) for device, note in bench.notes if isinstance(note, Refusal)] == [
        ("t1--d", RefusalReason.RATE)
    ]
    assert bench.core.counts["accepted"] == 1


def test_the_last_places_are_held_back_for_what_is_urgent(bench):
    for number in range(40):
        web(bench, number, tenant=f"t{number}", priority=3)
    low = bench.core.open_count
    for number in range(40, 80):
        web(bench, number, tenant=f"t{number}")
    normal = bench.core.open_count
    for number in range(80, 120):
        web(bench, number, tenant=f"t{number}", priority=1)
    assert (low, normal, bench.core.open_count) == (28, 34, 40)


def test_a_caller_who_would_wait_too_long_is_told_at_once(bench):
    bench.core.lineup.on_measured(CARD.name, BatchCost(0.1, 0.1), bench.now)  # 10 a second
    fill(bench, 20)
    refused = web(bench, 1, timeout_s=1.0)
    assert refused is not None
    assert refused.reason is RefusalReason.BUSY
    assert refused.retry_after_s >= 1.0
    assert web(bench, 2, timeout_s=60.0) is None


def test_a_caller_whose_time_is_over_is_handed_that_and_never_computed(bench):
    bench.core.lineup.on_measured(CARD.name, BatchCost(0.01, 0.0001), bench.now)
    bench.flush()
    for number in range(3):
        web(bench, number)
    bench.flush()  # these are at the engine
    web(bench, 9, timeout_s=2.0)
    bench.now += 1.9
    bench.infer()
    assert [(hand.key.epoch, hand.result) for hand in bench.handed if hand.result is RefusalReason.EXPIRED] == [
        (9, RefusalReason.EXPIRED)
    ]
    assert sum(bench.engine.batches) == 3


def test_a_tenants_rate_is_bounded_and_it_is_told_when_it_has_a_token_again():
    bench = Bench(tenant_rate_per_s=2.0, tenant_burst=3.0)
    refused = [web(bench, number, tenant="t") for number in range(4)]
    assert refused[:3] == [None] * 3
    assert refused[3] == RefuseQuestion(RefusalReason.RATE, 1.0)
    assert web(bench, 9, tenant="other") is None
    bench.now += 0.6
    assert web(bench, 10, tenant="t") is None


def test_a_process_that_is_late_refuses_before_it_reads_but_only_while_work_waits(bench):
    assert bench.core.check_overload("t", 10 * OVERLOAD_LAG_S, bench.now) is None
    for number in range(40):
        web(bench, number, tenant=f"t{number}")
    bench.core._batcher._max_batch = 4
    for queue in bench.core._batcher._queues.values():
        queue._most = 4
    assert bench.core.check_overload("t", OVERLOAD_LAG_S / 2, bench.now) is None
    first, second = (bench.core.check_overload("t", 2 * OVERLOAD_LAG_S, bench.now) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.reason is RefusalReason.BUSY
    assert second.retry_after_s > first.retry_after_s >= 1.0
    assert first.retry_after_s < 2.0


def test_callers_that_hang_up_leave_no_queue_behind(bench):
    for number in range(2000):
        web(bench, number)
        bench.core.drop_web_request(number)
    assert bench.core.open_count == 0
    assert sum(bench.core.queued_by_model().values()) < 300
    bench.settle()
    assert not [hand for hand in bench.handed if isinstance(hand, AnswerWebSample)]
    assert bench.engine.batches == []


@pytest.mark.further
def test_what_is_remembered_of_tenants_is_bounded(bench):
    bench.core._turnstile.draining = False
    for number in range(MAX_TENANTS + 100):
        web(bench, number, tenant=f"x{number}")
        bench.core.drop_web_request(number)
    assert len(bench.core._turnstile._buckets) == MAX_TENANTS


def test_two_hubs_share_a_tenants_rate_and_one_that_is_left_alone_has_it_all_again():
    bench = Bench(tenant_rate_per_s=2.0, tenant_burst=8.0)
    bench.core.news.on_hubs(2, bench.now)
    refused = [web(bench, number, tenant="t") for number in range(5)]
    assert refused[:4] == [None] * 4
    assert refused[4] == RefuseQuestion(RefusalReason.RATE, 1.0)  # of one token a second
    bench.now += 1.0
    assert web(bench, 10, tenant="t") is None
    bench.core.news.on_hubs(1, bench.now)
    bench.now += 1.0
    assert [web(bench, number, tenant="t") for number in (11, 12)] == [None] * 2
    assert web(bench, 13, tenant="t") is not None


def test_limits_that_are_replaced_hold_from_then_on_for_tenants_the_queue_and_devices(bench):
    fill(bench, 10, tenant="t1", priority=1)
    changed = HubSettings(max_queued=4, tenant_rate_per_s=0.001, tenant_burst=1.0, max_frame_bytes=10)
    bench.core.limits.replace(changed, bench.now)
    refused = web(bench, 1, tenant="t2", priority=1)
    assert refused is not None
    assert refused.reason is RefusalReason.BUSY, "the queue holds more than it may now"
    bench.settle()
    assert web(bench, 2, tenant="t3", priority=1) is None
    refused = web(bench, 3, tenant="t3", priority=1)
    assert refused is not None
    assert refused.reason is RefusalReason.RATE
    bench.ask(bench.devices["t1--d"], 1)
    assert bench.core.counts["refused.too_big"] == 1
