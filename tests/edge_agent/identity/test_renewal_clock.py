"""Certificate renewal under wrong clocks: the device's, the hub machine's, and a stolen reply key's."""

import asyncio
from pathlib import Path

import pytest
from cryptography import x509

from cloud_hub.registry.device_states import DeviceState
from edge_agent.identity.identity import load_identity
from edge_agent.identity.renewal import renew_in_child
from tests.edge_agent.doubles.identity_hub import DEVICE, serve_identity_hub
from tests.edge_agent.doubles.renewing import RenewerRig, renew_in_thread
from tests.examples import further
from wire.process.exit_codes import ExitCode, ExitError

DAY_MS = 86_400_000


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def certificate(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "device.pem").read_bytes())


# When


@pytest.mark.further
async def test_a_refused_link_makes_it_renew_whatever_the_clock_says(tmp_path):
    """With a clock that is behind the certificate looks valid, while the broker refuses the handshake."""
    async with serve_identity_hub(tmp_path) as hub:
        watched = RenewerRig(await hub.enrol(tmp_path / "d"))
        watched.renewer.on_link_refused("connection refused")  # a broker that is not there proves nothing
        await watched.run(0.1)
        assert watched.renewer.renewals == 0
        watched.renewer.on_link_refused("refused before CONNACK: Unspecified error")
        await watched.run()
        assert watched.renewer.renewals == 1
        watched.renewer.on_link_refused("refused before CONNACK: Unspecified error")
        await watched.run()
        assert watched.renewer.renewals == 1  # it did not help: not again for ten minutes
        watched.time.advance(601)
        await watched.run()
        assert watched.renewer.renewals == 2


@pytest.mark.parametrize(
    "wall_ms",
    [0, further(10 * 365 * DAY_MS), further(-DAY_MS), further(3_600_000)],
    ids=["1970", "+10 y", "-1 d", "+1 h"],
)
async def test_no_wall_clock_keeps_a_device_from_renewing(tmp_path, wall_ms):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
        watched = RenewerRig(made)
        watched.time.wall = 0 if wall_ms == 0 else made.hub_time_ms + wall_ms
        watched.clock.raise_floor(made.hub_time_ms)
        await renew_in_thread(made)
        watched.renewer.identity = load_identity(tmp_path / "d")
        watched.time.mono_s += 7 * 86_400
        await watched.run()
        assert watched.renewer.renewals == 1


@pytest.mark.parametrize("years", [-50, 10])
async def test_a_hub_whose_machine_has_a_wrong_clock_is_followed_in_hub_time(tmp_path, years):
    async with serve_identity_hub(tmp_path) as hub:
        hub.now_ms -= years * 365 * DAY_MS  # seen from the hub's machine, hub time is astray
        made = await hub.enrol(tmp_path / "d")
        begins, ends = made.certificate_ms
        assert begins == hub.now_ms
        assert ends - begins == 7 * DAY_MS + 300_000
        watched = RenewerRig(made)
        watched.time.wall = hub.now_ms
        await watched.run(0.1)
        assert watched.renewer.renewals == 0


@pytest.mark.further
async def test_a_lie_of_the_hubs_reply_key_about_time_locks_nobody_out(tmp_path):
    """A thief of the key that signs verdicts can move the clock, but not the CA-signed time that TLS checks use."""
    async with serve_identity_hub(tmp_path) as hub:
        watched = RenewerRig(await hub.enrol(tmp_path / "d"))
        watched.clock.on_signed_time(253_370_764_800_000)  # the year 9999
        await watched.run()
        assert watched.renewer.renewals == 1
        watched.renewer.identity.tls_context()


@pytest.mark.further
async def test_an_alarm_stands_while_the_hub_says_no(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        watched = RenewerRig(await hub.enrol(tmp_path / "d"))
        hub.registry.set_state(DEVICE, DeviceState.SUSPENDED, 1)
        watched.time.advance(6 * 86_400)
        await watched.run()
        assert watched.renewer.alarms() == {"renewal_refused"}
        hub.registry.set_state(DEVICE, DeviceState.ACTIVE, 2)
        watched.time.advance(3600)
        await watched.run()
        assert watched.renewer.alarms() == set()


# In a process of its own


async def test_a_child_renews_and_its_parent_reads_the_folder(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
        before = certificate(tmp_path / "d")
        again = await renew_in_child(made)
        assert certificate(tmp_path / "d").serial_number != before.serial_number
        assert again.hub_time_ms == hub.now_ms


@pytest.mark.further
async def test_a_child_that_fails_says_why_in_one_line(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
        hub.registry.set_state(DEVICE, DeviceState.SUSPENDED, 1)
        with pytest.raises(ExitError, match=r"^the hub refused \(403\)") as stop:
            await renew_in_child(made)
        assert stop.value.code is ExitCode.HUB
    with pytest.raises(ExitError, match="no hub answers"):
        await renew_in_child(made)
    (tmp_path / "d" / "ca.pem").write_text("x")
    with pytest.raises(ExitError) as stop:
        await renew_in_child(made)
    assert stop.value.code is ExitCode.CREDENTIALS


@pytest.mark.further
async def test_a_child_ends_with_the_task_that_waits_for_it(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
        before = files(tmp_path / "d")
        task = asyncio.create_task(renew_in_child(made))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.5)
    assert files(tmp_path / "d") == before
