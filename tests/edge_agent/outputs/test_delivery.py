"""Delivery of records to a target: which, in which order, at least once, and what is dropped and why."""

from pathlib import Path

import msgspec
import pytest

from edge_agent.outputs import delivery as delivery_module
from edge_agent.outputs.delivery import DeliveryError
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.outputs_bench import UNSURE, BenchAgent, MemoryTarget, delivering, until
from wire.process.exit_codes import ExitCode, ExitError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(delivery_module, "_RETRY_BASE_S", 0.001)
    monkeypatch.setattr(delivery_module, "_SAVE_EVERY_S", 0.02)


async def test_answers_and_corrections_are_handed_on_in_order(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    await agent.answer()  # before the output was configured: not for it
    async with delivering(agent, target, tmp_path) as output:
        unsure = await agent.answer(UNSURE)
        await agent.answer()
        await agent.verdict(unsure.id, 2)
        await until(lambda: len(target.taken) == 3)
        assert output.status_fields() == {
            "kind": "lines", "state": "ok", "error": "", "event": 4, "sent": 3, "filtered": 0, "dropped": {},
        }  # fmt: skip
    assert [(each["kind"], each["label"], each["device"]) for each in target.taken] == [
        ("answer", 0, "demo--a"), ("answer", 0, "demo--a"), ("correction", 2, "demo--a"),
    ]  # fmt: skip


async def test_an_output_goes_on_where_it_stopped(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    async with delivering(agent, target, tmp_path):
        await agent.answer()
        await until(lambda: len(target.taken) == 1)
    await agent.answer()  # while it does not run
    async with delivering(agent, target, tmp_path):
        await until(lambda: len(target.taken) == 2)
    assert [each["event"] for each in target.taken] == [1, 2]


async def test_a_crash_soon_after_the_first_start_does_not_make_it_begin_later(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    async with delivering(agent, target, tmp_path):
        left = (tmp_path / "outputs" / "out.json").read_bytes()
        await agent.answer()
        await until(lambda: len(target.taken) == 1)
    (tmp_path / "outputs" / "out.json").write_bytes(left)
    async with delivering(agent, target, tmp_path):
        await until(lambda: len(target.taken) == 2)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'["e1",-1]x'])
async def test_a_damaged_position_hands_everything_on_again(tmp_path: Path, damage):
    agent, target = BenchAgent(), MemoryTarget()
    async with delivering(agent, target, tmp_path):
        await agent.answer()
        await until(lambda: len(target.taken) == 1)
    (tmp_path / "outputs" / "out.json").write_bytes(damage)
    async with delivering(agent, target, tmp_path):
        await until(lambda: len(target.taken) == 2)


async def test_a_new_database_is_handed_on_from_its_beginning(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    async with delivering(agent, target, tmp_path):
        for _ in range(3):
            await agent.answer()
        await until(lambda: len(target.taken) == 3)
    fresh = BenchAgent()
    fresh.epoch = "e2"
    await fresh.answer()
    async with delivering(fresh, target, tmp_path):
        await until(lambda: len(target.taken) == 4)


async def test_a_target_that_is_away_gets_everything_later(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    target.fails = [DeliveryError("nobody listens") for _ in range(5)]
    async with delivering(agent, target, tmp_path) as output:
        await agent.answer()
        await until(lambda: output.error == "nobody listens")
        for _ in range(200):
            await agent.answer()  # answers do not wait for it
        await until(lambda: len(target.taken) == 201)
        assert (output.counts["retries"], output.error, sum(output.dropped.values())) == (5, "", 0)


async def test_a_target_without_a_connection_is_away_also_while_there_is_nothing_to_send(tmp_path: Path):
    target = MemoryTarget()
    target.trouble = "no link"
    async with delivering(BenchAgent(), target, tmp_path) as output:
        shown = output.status_fields()
        assert (shown["state"], shown["error"]) == ("away", "no link")


async def test_an_error_that_comes_again_and_again_drops_those_records_alone(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    target.fails = [DeliveryError("status 500", counted=True) for _ in range(3)]
    async with delivering(agent, target, tmp_path, kind="webhook", url="http://127.0.0.1:1/", attempts=3) as output:
        await agent.answer()
        await until(lambda: output.dropped["gave_up"] == 1)
        await agent.answer()
        await until(lambda: len(target.taken) == 1)
    assert target.asked == 4


async def test_records_that_grew_too_old_while_the_target_was_away_are_dropped_and_counted(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    target.fails = [DeliveryError("away")]
    agent.now_ms = 61_000  # the records are of the year 1970
    async with delivering(agent, target, tmp_path, max_age_s=60) as output:
        await agent.answer()
        await until(lambda: output.dropped["too_old"] == 1)
        agent.now_ms = 59_000
        await agent.answer()
        await until(lambda: len(target.taken) == 1)


async def test_what_the_policy_does_not_let_leave_goes_to_no_other_machine(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    agent.denied = DecisionReason.DENIED_DATA_CLASS
    keys = {"kind": "webhook"}
    async with delivering(agent, target, tmp_path, **keys, url="https://example.org/hook") as output:
        await agent.answer(data_class="private")
        await agent.answer(data_class="open")
        await until(lambda: len(target.taken) == 1)
        assert (target.taken[0]["data_class"], dict(output.dropped)) == ("open", {"denied_data_class": 1})


async def test_what_stays_on_this_machine_needs_no_policy(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    agent.denied = DecisionReason.DENIED_POLICY_ERROR
    async with delivering(agent, target, tmp_path):
        await agent.answer(data_class="private")
        await until(lambda: len(target.taken) == 1)


async def test_an_order_that_nothing_leaves_holds_for_records_that_wait(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    target.fails = [DeliveryError("away", retry_after_s=0.1)]
    async with delivering(agent, target, tmp_path, kind="webhook", url="https://example.org/") as output:
        await agent.answer(data_class="private")
        await until(lambda: output.error == "away")
        agent.denied = DecisionReason.DENIED_NOTICE
        await until(lambda: output.dropped["denied_notice"] == 1)
    assert target.taken == []


@pytest.mark.parametrize(
    ("keys", "events"),
    [
        ({"only": "answers"}, [1, 2, 3]),
        ({"only": "corrections"}, [4]),
        ({"min_confidence": 0.5}, [2, 3]),
        ({"data_class": ["private"]}, [3]),
        ({"labels": ["2"]}, [4]),
        ({"labels": ["nothing"]}, []),
    ],
)
async def test_only_the_records_that_are_wanted_are_handed_on(tmp_path: Path, keys, events):
    agent, target = BenchAgent(), MemoryTarget()
    async with delivering(agent, target, tmp_path, **keys) as output:
        unsure = await agent.answer(UNSURE)
        await agent.answer()
        await agent.answer(data_class="private")
        await agent.verdict(unsure.id, 2)
        await until(lambda: output.status_fields()["event"] == 4)
        assert [each["event"] for each in target.taken] == events
        assert output.counts["filtered"] == 4 - len(events)


async def test_only_the_fields_that_are_wanted_are_handed_on(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    async with delivering(agent, target, tmp_path, fields=["label", "confidence"]):
        await agent.answer()
        await until(lambda: len(target.taken) == 1)
    assert target.taken == [{"label": 0, "confidence": 1.0}]


async def test_records_that_are_no_longer_kept_are_counted(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    async with delivering(agent, target, tmp_path) as output:
        first = await agent.answer()
        await until(lambda: len(target.taken) == 1)
        agent.records.append(msgspec.structs.replace(first, event=9))
        await agent.refuse("")  # wakes the stream
        await until(lambda: len(target.taken) == 2)
        assert output.dropped["gone"] == 7


async def test_a_defect_of_ours_costs_its_record_and_no_other(tmp_path: Path):
    agent, target = BenchAgent(), MemoryTarget()
    target.fails = [ZeroDivisionError()]  # type: ignore[list-item]
    async with delivering(agent, target, tmp_path) as output:
        await agent.answer()
        await until(lambda: output.dropped["defect"] == 1)
        await agent.answer()
        await until(lambda: len(target.taken) == 1)


async def test_a_disk_that_takes_no_position_stops_nothing(tmp_path: Path, monkeypatch):
    def full(path, data):
        raise ExitError(ExitCode.DISK, "no space")

    monkeypatch.setattr("edge_agent.outputs.position.write_private_file", full)
    agent, target = BenchAgent(), MemoryTarget()
    async with delivering(agent, target, tmp_path):
        await agent.answer()
        await until(lambda: len(target.taken) == 1)
