"""Two hubs of a region and a rollout: started and commanded at one of them, it reaches the devices of both."""

from pathlib import Path

import pytest

from models.bundle.bundle import Bundle
from simulations.postgres import PostgresServer
from simulations.processes import ProcessHarness
from tests.live.doubles.candidates import successor
from tests.live.doubles.rolling import all_run, feeding, fleet, sets, typed
from tests.live.regions.test_leases import Pair, server
from tests.live.regions.test_news import share_keys
from wire.process.exit_codes import ExitCode
from wire.protocol.topics import compute_shard

__all__ = ["server"]

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(600)]

DEVICES = 4


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
        async with feeding(first, bundle, agents):
            told = await typed(second, "start", str(good.path), "--watch", *sets())
            assert told.code is ExitCode.OK, told.out + told.err
            await all_run(first, agents, "digits@2")
        shown = [(await typed(hub, "status", "--json")).json for hub in (first, second)]
        assert [each["states"] for each in shown] == [{"succeeded": DEVICES}] * 2
