"""Request storms: all devices at once, a healed partition, one flooding device. Latency is bounded, shares are fair."""

import random
from collections import Counter

import pytest

from cloud_hub.registry.device_states import DeviceState
from simulations.nodes.plain_envelopes import PlainEnvelopes
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice
from tests.cloud_hub.doubles.storm import Storm, by_tenant, crowd
from tests.cloud_hub.stories.test_core_machine import PlainDevice
from tests.jain_index import compute_jain_index
from wire.protocol.messages import RefusalReason

CAPACITY_PER_S = 16 / (0.05 + 0.002 * 16)
MAX_WAIT_S = 2.0


def p99(values: list[float]) -> float:
    return values[int(0.99 * (len(values) - 1))]


@pytest.mark.further
def test_at_ten_times_the_capacity_the_rest_is_shed_p99_stays_bounded_and_it_recovers_within_60_s():
    fleet = crowd(100, tenants=50)
    storm = Storm(*fleet, max_wait_s=MAX_WAIT_S)
    dice, when, seconds = random.Random(1), 0.0, 4.0
    seqs = Counter[str]()
    while when < seconds:
        when += dice.expovariate(10 * CAPACITY_PER_S)
        device = dice.choice(fleet).id
        seqs[device] += 1
        storm.ask(device, seqs[device] * 16, when)
    storm.run(seconds)
    assert all(refusal.retry_after_s >= 1.0 and not refusal.final for _, _, refusal in storm.refusals)
    assert {refusal.reason for _, _, refusal in storm.refusals} <= {RefusalReason.BUSY, RefusalReason.RATE}
    in_time = [at for at in storm.answered.values() if at > 1.0]
    assert len(in_time) >= 0.9 * CAPACITY_PER_S * (seconds - 1.0)
    assert p99(storm.latencies()) <= 1.5 * MAX_WAIT_S  # who is let in was expected to wait no longer than that
    assert compute_jain_index([float(n) for n in by_tenant(storm.served()).values()]) >= 0.95
    # A refusal is no write: only what was let in was ever stored.
    assert storm.bench.core.counts["accepted"] == len(storm.bench.store.read_unanswered()) + len(storm.answered)
    storm.patient = False  # everybody gives up; whoever comes within a minute is served at once
    storm.run(storm.now + 30.0)
    assert storm.bench.core.open_count == 0
    storm.answered.clear()
    storm.ask(fleet[0].id, 99_999 * 16, storm.now)
    storm.run(storm.now + 1.0)
    assert len(storm.answered) == 1


@pytest.mark.further
def test_an_escalation_storm_is_answered_to_the_last_device_and_nobody_waits_much_longer_than_the_others():
    fleet = crowd(200, tenants=8)
    storm = Storm(*fleet, max_wait_s=2.0)
    for number, device in enumerate(fleet):
        for seq in range(1, 4):
            storm.ask(device.id, seq * 16, 0.001 * number)
    storm.run(120.0)
    assert len(storm.answered) == 600, "everybody is served in the end"
    waits = sorted(at - storm.first_sent[key] for key, at in storm.answered.items())
    assert waits[-1] < 90.0
    assert p99(storm.latencies()) <= 2.5  # counted from the time it was let in
    assert max(storm.batches) == 16
    accepted = storm.bench.core.counts["accepted"]
    assert accepted == 600
    assert len(storm.refusals) < 4 * 600, "each comes back when its place is likely to be free, not all at once"


def test_refusals_send_a_crowd_back_one_after_the_other():
    fleet = crowd(300)
    bench = Bench(*fleet, envelopes=PlainEnvelopes(), max_queued=10, device_open=10)
    for device in fleet:
        bench.ask(device, 1)
    bench.commit()
    waits = sorted(refusal.retry_after_s for device in fleet for refusal in bench.refusals(device))
    assert len(waits) > 280
    assert len(set(waits)) == len(waits), "no two are told the same time"
    assert waits[0] >= 1.0
    assert waits[-1] <= 60.0
    assert bench.writes == 0, "ten wait for their lookup, the others cost the store nothing"


@pytest.mark.further
def test_after_a_partition_the_backlog_drains_by_priority_within_its_quota_and_live_traffic_is_not_starved():
    healed, live = crowd(20), PlainDevice("live--cam")
    storm = Storm(*healed, live, device_open=32)
    for device in healed:  # ten minutes of questions, all at once, the urgent ones last
        for seq in range(1, 65):
            priority = 3 if seq <= 24 else 0 if seq <= 48 else 1
            storm.ask(device.id, seq * 16, 0.0005 * seq, priority=priority)
    for number in range(1, 51):
        storm.ask(live.id, number * 16, 0.2 * number)
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, *(storm.bench.core._memory.count_for_device(device.id) for device in healed))
        storm.at(storm.now + 0.05, look)

    storm.at(0.05, look)
    storm.run(60.0)
    assert len(storm.answered) == 20 * 64 + 50
    assert most <= 32, "no device has more open than its quota"
    assert storm.latencies(live.id)[-1] < 1.0, "live traffic does not wait for the backlog"
    when: dict[int, list[float]] = {priority: [] for priority in (1, 0, 3)}
    for key, at in storm.answered.items():
        if key[0] != live.id:
            number = key[1] // 16
            when[3 if number <= 24 else 0 if number <= 48 else 1].append(at - storm.admitted[key])
    means = {priority: sum(times) / len(times) for priority, times in when.items()}
    assert means[1] < means[0] < means[3]


def state_of(bench: Bench, device: SimDevice) -> DeviceState:
    found = bench.registry.device(device.id)
    assert found is not None
    return found.state


@pytest.mark.further
def test_a_thousand_bad_signatures_a_second_cost_little_suspend_the_device_and_touch_nobody_else():
    evil, good = SimDevice("demo--evil"), SimDevice("demo--good")
    bench = Bench(evil, good)
    checked = Counter[str]()
    verify = bench.envelopes.verify

    def counting(frame, device, channel):
        checked[device.id] += 1
        verify(frame, device, channel)

    bench.envelopes.verify = counting  # type: ignore[method-assign]
    frame = bytearray(evil.question(1, bench.now))
    frame[-1] ^= 1
    for second in range(90):
        for _ in range(1000):
            bench.say(evil.up, bytes(frame))
        bench.now += 1.0
        bench.ask(good, (second + 1) * 16)
        bench.settle()
        if state_of(bench, evil) is DeviceState.SUSPENDED:
            break
    assert second <= 61, "muted at once, suspended when it goes on after the first minute"
    assert checked[evil.id] <= 40, "61,000 frames cost no more than 40 checks of a signature"
    assert len(bench.verdicts(good)) == second + 1
    assert not bench.replies(evil), "a forged frame is no reason to say anything to anybody"
    before = checked[evil.id]
    bench.say(evil.up, bytes(frame))
    assert checked[evil.id] == before


def test_one_bad_minute_between_good_signatures_suspends_nobody():
    device = SimDevice("demo--old")
    bench = Bench(device)
    broken = bytearray(device.question(1, bench.now))
    broken[-1] ^= 1
    for _ in range(3):
        for _ in range(100):
            bench.say(device.up, bytes(broken))
        bench.now += 61.0
        bench.ask(device, int(bench.now) * 16)
        bench.settle()
        bench.now += 200.0
    assert state_of(bench, device) is DeviceState.ACTIVE
    assert len(bench.verdicts(device)) == 3
