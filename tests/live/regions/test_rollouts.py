"""Hubs of a region and a rollout: it reaches all devices, people command anywhere, who decides may be killed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.region.leases import TASKS, RegionTask
from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.candidates import successor
from tests.live.doubles.fleet import BUSY_S
from tests.live.doubles.own_broker import OwnBroker, tapped
from tests.live.doubles.rolling import all_run, feeding, fleet, sets, typed
from tests.live.regions.test_leases import Pair, server
from tests.live.regions.test_news import share_keys
from tests.postgres import PostgresServer
from wire.process.exit_codes import ExitCode
from wire.protocol.codec import decode_down_note, split_frame
from wire.protocol.rollout import Assignment
from wire.protocol.topics import compute_shard

__all__ = ["server"]

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]

HUBS = ("hub", "hub-2", "hub-3")
ROLLOUT_S = 300.0  # for a whole one, which takes half a minute on a quiet machine
PAUSE_S = 0.05  # of each caller: nine in ten answers are audited, and slow devices go back (`find_breach`)
DEVICES = 5  # of which each of three hubs serves one at least


async def test_a_rollout_started_at_either_hub_reaches_the_devices_of_both(
    tmp_path: Path, bundle: Bundle, server: PostgresServer
):
    store = {"store": {"url": server.create_database()}}
    good = successor(tmp_path, bundle, 2)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    async with ProcessHarness(tmp_path / "first") as first, ProcessHarness(tmp_path / "second") as second:
        agents = await fleet(first, bundle, [good], DEVICES, store)
        assert first.hub is not None
        broker = {"start": False, "port": first.hub.broker_port}
        two = await second.configure_hub(
            bundle.path, {**store, "broker": broker, "hub": {"member": "hub-2"}}, also=[good.path]
        )
        share_keys(first.hub, two)
        await second.launch_hub()
        pair = Pair(first, second, store["store"]["url"], bundle)
        await pair.until_shards(hub=128, hub_2=128)
        served = {compute_shard(agent.device) for agent in agents}
        assert served & pair.shards_of("hub")
        assert served & pair.shards_of("hub-2")
        async with feeding(first, bundle, agents, PAUSE_S):
            told = await typed(second, "start", str(good.path), "--watch", *sets(min_inferences=50))
            assert told.code is ExitCode.OK, told.out + told.err
            await all_run(first, agents, "digits@2")
        shown = [(await typed(hub, "status", "--json")).json for hub in (first, second)]
        assert [each["states"] for each in shown] == [{"succeeded": DEVICES}] * 2


class Three:
    """Hubs `hub`, `hub-2` and `hub-3` over one database and a broker of its own; the agents fetch from the first.

    `carried`: everything the broker carried.
    """

    def __init__(self, hubs: list[ProcessHarness], agents: list[AgentHandle], pair: Pair, carried: list[bytes]) -> None:
        self.hubs, self.agents, self.pair, self.carried = hubs, agents, pair, carried

    def find_decider(self) -> str:
        """Name of the hub that holds the task `rollouts`, "" if nobody does."""
        alive = "until_ms > extract(epoch from clock_timestamp()) * 1000"
        number = TASKS.index(RegionTask.ROLLOUTS)
        found = self.pair.query(f"select hub from region.leases where kind = 'task' and number = {number} and {alive}")
        return str(found[0][0]) if found else ""

    async def until_decider(self, *names: str) -> None:
        async with asyncio.timeout(BUSY_S):
            while self.find_decider() not in names:
                await asyncio.sleep(0.05)

    async def status(self, at: int) -> dict[str, Any]:
        """The newest rollout, as `skerry rollout status` shows it at one of the hubs."""
        return dict((await typed(self.hubs[at], "status", "--json")).json)

    async def until(self, at: int, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until a hub shows the newest rollout so."""
        async with asyncio.timeout(ROLLOUT_S):
            while not wanted(found := await self.status(at)):
                await asyncio.sleep(0.2)
        return found

    def list_assignments(self) -> dict[str, dict[int, Assignment]]:
        """What each device was told, by device and counter, whichever hub told it and however often.

        AssertionError if a device was told two things under one counter.
        """
        told: dict[str, dict[int, Assignment]] = {agent.device: {} for agent in self.agents}
        for topic, _, payload in (message.partition(b" ") for message in self.carried):
            if topic.endswith(b"/down/desired") and payload:
                note = decode_down_note(split_frame(payload).body)
                if isinstance(note, Assignment):
                    assert told[note.device].setdefault(note.counter, note) == note
        assert any(told.values()), "assignments cannot be read any more"
        return told


@pytest.fixture
async def three(tmp_path: Path, bundle: Bundle, server: PostgresServer) -> AsyncIterator[Three]:
    url = server.create_database()
    candidates = [successor(tmp_path, bundle, 2), successor(tmp_path, bundle, 3)]
    async with AsyncExitStack() as stages:
        for name in HUBS:
            (tmp_path / name).mkdir()
        broker = stages.enter_context(OwnBroker(tmp_path / HUBS[0]))
        carried = await stages.enter_async_context(tapped(broker))
        hubs = [await stages.enter_async_context(ProcessHarness(tmp_path / name)) for name in HUBS]
        shared: dict[str, Any] = {"store": {"url": url}, **broker.for_the_hub}
        agents = await fleet(hubs[0], bundle, candidates, DEVICES, shared)
        pair = Pair(hubs[0], hubs[1], url, bundle)
        assert hubs[0].hub is not None
        for hub, shares in zip(hubs[1:], ((128, 128), (86, 85, 85)), strict=True):
            member = {"member": HUBS[len(shares) - 1]}
            made = await hub.configure_hub(
                bundle.path, {**shared, "hub": member}, also=[each.path for each in candidates]
            )
            share_keys(hubs[0].hub, made)
            await hub.launch_hub()
            await pair.until_shards(**dict(zip(("hub", "hub_2", "hub_3"), shares, strict=False)))
        served = {compute_shard(agent.device) for agent in agents}
        assert all(served & pair.shards_of(name) for name in HUBS)
        region = Three(hubs, agents, pair, carried)
        await region.until_decider("hub-3")  # the last one to come takes what the first one gives
        yield region


def is_under_way(shown: dict[str, Any]) -> bool:
    return shown["state"] in {"running", "soaking"} and shown["exposed"] > 0


def is_settled(shown: dict[str, Any]) -> bool:
    return shown["state"] in {"completed", "completed_partial", "aborted", "denied"}


async def test_people_pause_resume_and_abort_at_hubs_that_do_not_decide(three: Three, bundle: Bundle, tmp_path: Path):
    good, other = (str(tmp_path / f"digits-{version}") for version in (2, 3))
    async with feeding(three.hubs[0], bundle, three.agents, PAUSE_S):
        told = await typed(three.hubs[1], "start", good, *sets(min_inferences=50))
        assert told.code is ExitCode.OK, told.out + told.err
        await three.until(0, is_under_way)
        told = await typed(three.hubs[0], "pause", "--why", "lunch")
        assert told.code in {ExitCode.OK, ExitCode.WAITING}, told.out + told.err
        paused = await three.until(2, lambda shown: bool(shown["state"] == "paused_manual"))
        await asyncio.sleep(5)  # the hub that decides has had its rounds
        assert (await three.status(1))["state"] == "paused_manual"
        assert (await three.status(2))["exposed"] == paused["exposed"] < DEVICES
        told = await typed(three.hubs[1], "resume")
        assert told.code is ExitCode.OK, told.out + told.err
        assert (await three.until(0, is_settled))["states"] == {"succeeded": DEVICES}
        await all_run(three.hubs[0], three.agents, "digits@2")
        endless = sets(min_inferences=1_000_000)  # nobody commits it before the abort, however slow this machine is
        told = await typed(three.hubs[1], "start", other, *endless)
        assert told.code is ExitCode.OK, told.out + told.err
        await three.until(0, lambda shown: shown["id"] in told.out and is_under_way(shown))
        told = await typed(three.hubs[0], "abort", "--why", "smells")
        assert told.code in {ExitCode.OK, ExitCode.STOPPED}, told.out + told.err
        ended = [await three.until(at, is_settled) for at in range(3)]
        assert [each["state"] for each in ended] == ["aborted"] * 3
        await all_run(three.hubs[0], three.agents, "digits@2")
    assert three.find_decider() == "hub-3"


async def test_the_hub_that_decides_is_killed_in_mid_rollout_and_another_goes_on(
    three: Three, bundle: Bundle, tmp_path: Path
):
    async with feeding(three.hubs[0], bundle, three.agents, PAUSE_S):
        told = await typed(three.hubs[1], "start", str(tmp_path / "digits-2"), *sets(min_inferences=50))
        assert told.code is ExitCode.OK, told.out + told.err
        before = await three.until(0, is_under_way)
        assert before["exposed"] < DEVICES, "it is not in the middle any more"
        assert three.hubs[2].hub is not None
        await three.hubs[2].hub.child.kill()
        await three.until_decider("hub", "hub-2")
        done = await three.until(1, is_settled)
        assert (done["state"], done["states"]) == ("completed", {"succeeded": DEVICES}), done["why"]
        await all_run(three.hubs[0], three.agents, "digits@2")
    assert (await three.status(0))["states"] == {"succeeded": DEVICES}
    for device, words in three.list_assignments().items():
        installs = [word for word in words.values() if word.version == 2 and not word.withdraw]
        assert [word.needs_release for word in sorted(installs, key=lambda word: word.counter)] == [True, False], device
        assert {word.version for word in words.values() if not word.withdraw} <= {1, 2}  # 1: to stay, as a control
    what = [each["what"] for each in (await typed(three.hubs[0], "history", "--json")).json]
    assert [what.count(each) for each in ("completed", "aborting")] == [1, 0]
    assert what.count("soaking") == len(done["waves"]) > 1
