"""Two regions, each with broker and hub of its own: one is slow, one is cut, and what may not go there never does."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from edge_agent.identity.enrollment import enrol_device
from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.fleet import POLICY, QUICK, ask, burst, samples, settle, until
from tests.live.doubles.own_broker import OwnBroker, tapped
from tests.live.doubles.proxy import Proxy, proxied

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

RULE = """
[[rule]]
name = "stays-north"
when = { data_class = ["restricted"] }
regions = ["north"]
"""


@dataclass
class Two:
    """`proxy` stands between the device and the northern broker; `carried`: all that the southern broker saw."""

    north: ProcessHarness
    south: ProcessHarness
    agent: AgentHandle
    proxy: Proxy
    carried: list[bytes]

    async def up(self, **lines: str) -> None:
        wanted = {line.replace("_", "-"): state for line, state in lines.items()}
        await self.north.wait_for(self.agent, lambda s: wanted.items() <= s["lines"].items(), f"never {wanted}")

    def went_to(self, region: str) -> list[tuple[str, bytes]]:
        """(answer id, digest of the frame) of each ledger entry of a question for this region."""
        query = "select id, digest from ledger where region=? and kind in ('question', 'resealed')"
        with contextlib.closing(sqlite3.connect(f"file:{self.agent.database}?mode=ro", uri=True)) as db:
            return db.execute(query, (region,)).fetchall()

    def seen_in_the_south(self) -> list[bytes]:
        """Digests of the questions that the southern broker carried."""
        parts = (message.partition(b" ") for message in self.carried)
        return [sha256(payload).digest() for topic, _, payload in parts if topic.endswith(b"/up/q")]


def hub(name: str, region: str) -> dict[str, Any]:
    return {"hub": {"name": name, "region": region}}


@pytest.fixture
async def two(tmp_path: Path, bundle: Bundle) -> AsyncIterator[Two]:
    document = POLICY.format(mode="hub_first", budget_s=1.0) + RULE
    more = "open = true\nrestricted = true"
    wider = (('"hub-1"', '"hub-n", "hub-s"'), ('"local"', '"north", "south"'), ("open = true", more))
    for narrow, wide in wider:
        document = document.replace(narrow, wide)
    (tmp_path / "policy.toml").write_text(document)
    for region in ("north", "south"):
        (tmp_path / region).mkdir()
    with OwnBroker(tmp_path / "south") as broker:
        async with (
            ProcessHarness(tmp_path / "north") as north,
            ProcessHarness(tmp_path / "south") as south,
            tapped(broker) as carried,
        ):
            await asyncio.gather(
                north.start_hub(bundle.path, hub("hub-n", "north")),
                south.start_hub(bundle.path, {**broker.for_the_hub, **hub("hub-s", "south")}),
            )
            assert north.hub is not None
            async with proxied(north.hub.broker_port) as proxy:
                agent = await joined(north, south, bundle, tmp_path / "policy.toml", proxy)
                two = Two(north, south, agent, proxy, carried)
                await north.start_agent(agent)
                await two.up(home="up", hub_s="up")
                # a new device sends nothing before its home hub has told it what it has spent
                await north.wait_for(agent, lambda s: "mirrors" in s["counts"], "never told what it has spent")
                yield two


async def joined(
    north: ProcessHarness, south: ProcessHarness, bundle: Bundle, policy: Path, proxy: Proxy
) -> AgentHandle:
    """Enrolled in both regions; the northern hub is the cheaper one, and is reached through the proxy."""
    agent = await north.add_agent("a", bundle.path, policy, QUICK)
    folder = agent.folder.parent / "a-south"
    await asyncio.to_thread(enrol_device, await south.create_invite("demo--a"), folder)
    card = agent.folder / "identity.json"
    told = json.loads(card.read_text())
    card.write_text(json.dumps({**told, "broker_port": proxy.port}))
    with (agent.folder / "agent.toml").open("a") as config:
        config.write(f'\n[[hub]]\nprice = 1\n\n[[hub]]\nstate = "{folder}"\nprice = 5\n')
    return agent


async def restricted(two: Two, bundle: Bundle, x: Any) -> dict[str, Any]:
    return await ask(two.north, two.agent, bundle, x, parameters={"data_class": "restricted"})


async def test_what_may_not_leave_its_region_waits_for_it_while_the_rest_goes_to_the_other(two: Two, bundle: Bundle):
    first = await burst(two.north, two.agent, bundle, samples(6), at_once=2)
    assert {answer["source"] for answer in first} == {"hub"}
    assert (len(two.went_to("north")), len(two.went_to("south"))) == (6, 0)  # the cheaper one that is quick enough

    two.proxy.cut()
    await two.up(home="down")
    open_ones = await burst(two.north, two.agent, bundle, samples(6, 4), at_once=2)
    kept = [await restricted(two, bundle, x) for x in samples(3, 5)]
    assert {answer["source"] for answer in open_ones} == {"hub"}
    assert {(answer["source"], answer["reason"]) for answer in kept} == {("local", "link_down")}
    await until(lambda: len(two.seen_in_the_south()) >= len(two.went_to("south")) >= len(open_ones))
    south = {digest: id_ for id_, digest in two.went_to("south")}
    assert set(two.seen_in_the_south()) == set(south)
    assert {answer["answer_id"] for answer in kept}.isdisjoint(south.values())
    assert {answer["answer_id"] for answer in open_ones} == set(south.values())

    two.proxy.mend()
    await two.up(home="up")
    await settle(two.north)
    ended = {answer["answer_id"] for answer in kept}
    with contextlib.closing(sqlite3.connect(two.agent.database)) as db:
        outcomes = dict(db.execute("select id, outcome from outcomes"))
    assert {outcomes[id_] for id_ in ended} == {"answered"}
    assert set(two.seen_in_the_south()) == {digest for _, digest in two.went_to("south")}


async def test_a_question_under_way_when_its_region_is_cut_is_sealed_anew_for_the_other(two: Two, bundle: Bundle):
    two.proxy.delay_s = 60.0  # each way: no verdict is back when a question is seen to have gone, however late that is
    feeding = asyncio.create_task(burst(two.north, two.agent, bundle, samples(40), at_once=20))
    await until(lambda: two.went_to("north"))
    two.proxy.cut()
    answers = await feeding
    await settle(two.north)
    moved = {id_ for id_, _ in two.went_to("north")} & {id_ for id_, _ in two.went_to("south")}
    assert moved, "nothing was under way when the line was cut"
    with contextlib.closing(sqlite3.connect(two.agent.database)) as db:
        outcomes = dict(db.execute("select id, outcome from outcomes"))
    assert {outcomes[answer["answer_id"]] for answer in answers} == {"answered"}


async def test_a_region_that_is_too_slow_is_left_for_a_dearer_one_and_tried_again_never_by_what_may_not_go(
    two: Two, bundle: Bundle
):
    two.proxy.delay_s = 0.7  # each way: slower than the policy waits
    await ask(two.north, two.agent, bundle, samples(1)[0])
    await settle(two.north)
    quick = await burst(two.north, two.agent, bundle, samples(8, 4), at_once=2)
    slow = await restricted(two, bundle, samples(1, 5)[0])
    assert {answer["source"] for answer in quick} == {"hub"}
    assert len(two.went_to("south")) == 8
    assert (slow["source"], slow["reason"]) == ("local", "budget_elapsed")
    await settle(two.north)
    assert slow["answer_id"] in {id_ for id_, _ in two.went_to("north")}
    assert set(two.seen_in_the_south()) == {digest for _, digest in two.went_to("south")}
