"""Certificate renewal at two thirds of the life, signed by the identity key, under attacks and outages."""

import asyncio
import base64
import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.registry.device_states import DeviceState
from cloud_hub.security.authorities import RotatingAuthority
from cloud_hub.security.authority import utc_now
from edge_agent.identity.identity import load_identity
from edge_agent.identity.renewal import RENEW_AT, RENEW_SPREAD, RETRY_BASE_S, RETRY_CAP_S, compute_due_ms
from tests.edge_agent.doubles.identity_hub import DEVICE, Change, serve_identity_hub
from tests.edge_agent.doubles.renewing import RenewerRig, renew_in_thread
from wire.process.exit_codes import ExitCode, ExitError

DAY_MS = 86_400_000


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def certificate(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "device.pem").read_bytes())


# When


@given(st.integers(0, 2**42), st.integers(1, 90 * DAY_MS), st.floats(0, 1))
def test_it_is_due_at_two_thirds_more_or_less(begins, life_ms, dice):
    at = compute_due_ms((begins, begins + life_ms), dice)
    assert (at - begins + 1) / life_ms >= RENEW_AT - RENEW_SPREAD / 2
    assert (at - begins) / life_ms <= RENEW_AT + RENEW_SPREAD / 2


def test_a_life_that_nobody_noted_is_renewed_at_once():
    assert compute_due_ms((0, 0), 0.5) == 0


def test_a_fleet_enrolled_in_one_hour_does_not_renew_in_one():
    week = (0, 7 * DAY_MS)
    assert compute_due_ms(week, 1.0) - compute_due_ms(week, 0.0) > 16 * 3600 * 1000


# How


async def test_a_renewal_brings_a_new_key_and_leaves_the_identity_as_it_was(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        before = await hub.enrol(tmp_path / "d")
        old = certificate(tmp_path / "d")
        after = await renew_in_thread(before)
        known = hub.registry.device(DEVICE)
        assert known is not None
    new, again = certificate(tmp_path / "d"), load_identity(tmp_path / "d")
    assert new.public_key() != old.public_key()
    assert known.serial == f"{new.serial_number:x}"
    assert after.certificate_ms == again.certificate_ms
    assert again.certificate_ms[1] == int(new.not_valid_after_utc.timestamp() * 1000)
    assert (again.signing_id, again.hpke_id, again.payload_key) == (
        before.signing_id,
        before.hpke_id,
        before.payload_key,
    )
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "d").iterdir()} == {0o600}
    again.tls_context()


@pytest.mark.further
async def test_an_expired_certificate_is_renewed_by_the_identity_key(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        hub.live(0.01)
        made = await hub.enrol(tmp_path / "d")
        await asyncio.sleep(1.1)  # whole seconds, in certificates
        assert certificate(tmp_path / "d").not_valid_after_utc < utc_now()
        hub.live(3600)
        await renew_in_thread(made)
    assert certificate(tmp_path / "d").not_valid_after_utc > utc_now()


async def test_a_renewal_during_a_rotation_pins_both_authorities_and_after_it_the_new_one(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
        hub.authorities.begin_rotation(utc_now())
        made = await renew_in_thread(made)
        assert len(made.trusted) == 2
        assert [each.authority for each in hub.registry.devices()] == [hub.authorities.issuer_sha256]
        hub.authorities.finish_rotation()
        hub.authorities.ensure_server((), utc_now())  # the server goes on with the old one until it is told
        made = await renew_in_thread(made)
        assert made.trusted == hub.authorities.trusted


@pytest.mark.parametrize("state", [DeviceState.SUSPENDED, DeviceState.REVOKED])
async def test_a_device_that_may_not_is_told_and_keeps_what_it_has(tmp_path, state):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
        before = files(tmp_path / "d")
        hub.registry.set_state(DEVICE, state, 1)
        with pytest.raises(ExitError, match=f"403.*{state}"):
            await renew_in_thread(made)
    assert files(tmp_path / "d") == before


async def test_a_folder_that_does_not_know_its_hub_says_so(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
    card = tmp_path / "d" / "identity.json"
    card.write_text(card.read_text().replace(made.hub_url, ""))
    with pytest.raises(ExitError, match="enrol anew"):
        await renew_in_thread(load_identity(tmp_path / "d"))


# Who is in between


def body(reply: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**reply, "body": json.dumps({**json.loads(reply["body"]), **changes})}


def resigned(by: RotatingAuthority, **changes: Any) -> Change:
    """The same reply, changed, with another key's signature."""

    def change(reply: dict[str, Any]) -> dict[str, Any]:
        text = body(reply, **changes)["body"]
        return {"body": text, "signature": base64.b64encode(by.sign(text.encode())).decode()}

    return change


SWAPPED = [{"name": "hub-1", "region": "local", "hpke_key": "eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg=",
            "signing_key": "eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXk="}]  # fmt: skip
ATTACKS: dict[str, Change] = {
    "case91 hub keys swapped": lambda r: body(r, hubs=SWAPPED),
    "broker moved": lambda r: body(r, broker={"host": "evil.example", "port": 1}),
    "hub moved": lambda r: body(r, hub_url="https://evil.example"),
    "no signature": lambda r: {"body": r["body"]},
    "signature not base64": lambda r: {**r, "signature": "ü"},
    "not an object": lambda _: [],
    "too long": lambda r: {**r, "more": "x" * 70_000},
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_letter_changed_on_the_way_changes_nothing(tmp_path, attack):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
        before = files(tmp_path / "d")
        hub.change = ATTACKS[attack]
        with pytest.raises(ExitError) as stop:
            await renew_in_thread(made)
    assert stop.value.code in (ExitCode.ENROLMENT, ExitCode.HUB)
    assert files(tmp_path / "d") == before


async def test_hub_keys_under_the_signature_of_another_authority_are_refused(tmp_path):
    (tmp_path / "evil").mkdir()
    evil = RotatingAuthority.open(tmp_path / "evil", utc_now())
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
        before = files(tmp_path / "d")
        for changes in ({"hubs": SWAPPED}, {"hubs": SWAPPED, "ca": evil.trusted[0], "trusted": evil.trusted}):
            hub.change = resigned(evil, **changes)
            with pytest.raises(ExitError, match="signature"):
                await renew_in_thread(made)
    assert files(tmp_path / "d") == before


async def test_an_old_letter_handed_out_again_is_refused(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
        made = await renew_in_thread(made)
        before = files(tmp_path / "d")
        hub.change = lambda _: hub.replies[1]
        with pytest.raises(ExitError, match="another key"):
            await renew_in_thread(made)
    assert files(tmp_path / "d") == before


async def test_another_server_hears_nothing_of_the_request(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
        (tmp_path / "other").mkdir()
        async with serve_identity_hub(tmp_path / "other") as other:
            moved = replace(made, hub_url=other.url)
            with pytest.raises(ExitError, match="certificate verify failed") as stop:
                await renew_in_thread(moved)
            assert stop.value.code is ExitCode.HUB
            assert other.asked == 0


async def test_a_full_disk_keeps_the_old_pair(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
        before = files(tmp_path / "d")
        (tmp_path / "d").rename(tmp_path / "gone")
        with pytest.raises(ExitError):
            await renew_in_thread(made)
        (tmp_path / "gone").rename(tmp_path / "d")
    assert files(tmp_path / "d") == before


# The task


async def test_with_the_ca_down_it_tries_again_with_growing_jittered_waits(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        made = await hub.enrol(tmp_path / "d")
    watched = RenewerRig(made, dice=1.0)
    watched.time.advance(5 * 86_400)
    waits = []
    for _ in range(12):
        await watched.renewer._try_renewal(watched.reconnect)
        waits.append(watched.renewer._not_before_s - watched.clock.now())
    assert waits[0] == RETRY_BASE_S * 1.5
    assert waits[1:4] == [RETRY_BASE_S * (0.5 + 2**n) for n in (1, 2, 3)]
    assert max(waits) == RETRY_CAP_S + RETRY_BASE_S / 2
    calm = RenewerRig(made, dice=0.0)
    await calm.renewer._try_renewal(calm.reconnect)
    assert calm.renewer._not_before_s - calm.clock.now() == RETRY_BASE_S / 2  # never at once, whatever the dice
    assert watched.reconnects == 0
    assert "no hub answers" in watched.renewer.status_fields()["renewal_error"]


async def test_it_renews_when_due_and_the_link_takes_the_new_certificate(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        watched = RenewerRig(await hub.enrol(tmp_path / "d"))
        await watched.run(0.1)
        assert (hub.asked, watched.reconnects) == (1, 0)  # the enrolment alone
        watched.time.advance(7 * 86_400 * 0.7)
        await watched.run()
        assert (watched.renewer.renewals, watched.reconnects, hub.asked) == (1, 1, 2)
        assert watched.renewer.status_fields()["renewal_error"] == ""


@pytest.mark.further
async def test_down_then_back_and_expired_meanwhile(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        watched = RenewerRig(await hub.enrol(tmp_path / "d"))
        url = hub.url
    watched.time.advance(8 * 86_400)
    await watched.run(0.1)
    assert watched.renewer.alarms() == {"certificate_expired"}
    assert watched.renewer.renewals == 0
    assert url in watched.renewer.error
    async with serve_identity_hub(tmp_path) as hub:  # the same hub, back on another port
        watched.renewer.identity = replace(watched.renewer.identity, hub_url=hub.url)
        watched.time.advance(3600)
        hub.live(30 * 86_400)
        await watched.run()
        assert watched.renewer.renewals == 1
    assert watched.renewer.alarms() == set()
