"""Retirement of a device: its ledger verifies, the hub was told, and no key that could act for it is left."""

import asyncio
import base64
import json
import sqlite3
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cloud_hub.registry.device_states import DeviceState
from edge_agent.app.agent import Agent
from edge_agent.cli import retirement
from edge_agent.cli.retirement import RetirementResult, retire_device
from edge_agent.identity.identity import Identity, folder_is_enrolled, load_identity
from edge_agent.ledger_audit.export import EXPORT_TAG
from models.runtime.runner import EchoRunner
from tests.edge_agent.doubles.hub_double import policy, sample, settings, until
from tests.edge_agent.doubles.identity_hub import DEVICE, IdentityHub, serve_identity_hub
from wire.process.exit_codes import ExitCode, ExitError
from wire.transport.base import LinkLostError, Transport


async def no_link() -> Transport:
    raise LinkLostError("nobody is there")


async def work(identity: Identity, folder: Path, questions: int = 3) -> None:
    """A device that asks and is never answered."""
    agent = Agent(settings(folder), identity, EchoRunner(2), policy(), no_link)
    running = asyncio.create_task(agent.run())
    await until(lambda: agent.status()["disk"] == "ok")
    for _ in range(questions):
        await agent.infer(sample())
    agent.stop()
    await running


async def device(hub: IdentityHub, folder: Path, questions: int = 3) -> Path:
    """An enrolled folder with open questions in its database."""
    await work(await hub.enrol(folder), folder, questions)
    return folder


async def retired(folder: Path, ledger: Path, *, offline: bool = False) -> RetirementResult:
    return await asyncio.to_thread(retire_device, folder, ledger, offline=offline)


def check(ledger: Path, signing_key: Ed25519PublicKey) -> list[dict[str, object]]:
    """The lines, once the file proves itself to a holder of the device's public key."""
    *lines, last = ledger.read_bytes().splitlines(keepends=True)
    digest = sha256(b"".join(lines))
    end = json.loads(last)
    assert end["sha256"] == digest.hexdigest()
    signing_key.verify(base64.b64decode(end["signature"]), EXPORT_TAG + digest.digest())
    return [json.loads(line) for line in lines]


async def test_a_device_retires_with_its_ledger_exported_and_everything_wiped(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        folder = await device(hub, tmp_path / "d")
        (folder / "updates" / "slots").mkdir(parents=True)
        (folder / "updates" / "slots" / "model.skb").write_bytes(b"model")
        done = await retired(folder, tmp_path / "ledger.jsonl")
        known = hub.registry.device(DEVICE)
        assert known is not None
        assert known.state is DeviceState.RETIRED
    assert done.ledger is not None
    assert (done.expired, done.ledger.entries, done.ledger.outcomes, done.left) == (3, 3, 3, ())
    assert known.ledger == done.ledger.sha256 == sha256((tmp_path / "ledger.jsonl").read_bytes()).hexdigest()
    head, *rest = check(tmp_path / "ledger.jsonl", known.signing_key)
    assert head["device"] == DEVICE
    outcomes = [line["outcome"] for line in rest if "outcome" in line]
    assert [(o["outcome"], o["reason"]) for o in outcomes] == [("expired", "retired")] * 3  # type: ignore[index]
    assert [path.name for path in folder.iterdir()] == ["lock"]
    assert (tmp_path / "ledger.jsonl").stat().st_mode & 0o777 == 0o600
    assert not folder_is_enrolled(folder)


async def test_a_retired_folder_can_become_another_device(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        folder = await device(hub, tmp_path / "d")
        await retired(folder, tmp_path / "ledger.jsonl")
        again = await hub.enrol(folder)
    assert load_identity(folder).signing_id == again.signing_id


async def test_without_the_hub_nothing_is_wiped_and_the_same_words_go_on_later(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        folder = await device(hub, tmp_path / "d")
    with pytest.raises(ExitError) as stop:
        await retired(folder, tmp_path / "ledger.jsonl")
    assert stop.value.code is ExitCode.HUB
    load_identity(folder).tls_context()
    first = (tmp_path / "ledger.jsonl").read_bytes()
    done = await retired(folder, tmp_path / "ledger.jsonl", offline=True)
    assert (tmp_path / "ledger.jsonl").read_bytes() == first
    assert done.ledger is not None
    assert (done.expired, done.ledger.entries) == (0, 3)  # they expired the first time
    assert not folder_is_enrolled(folder)


async def test_a_hub_that_says_no_keeps_the_device_whole(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        folder = await device(hub, tmp_path / "d")
        hub.registry.set_state(DEVICE, DeviceState.SUSPENDED, 1)
        with pytest.raises(ExitError, match="suspended; nothing was wiped"):
            await retired(folder, tmp_path / "ledger.jsonl")
    load_identity(folder).tls_context()


async def test_a_reply_that_was_lost_is_no_harm(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        folder = await device(hub, tmp_path / "d")
        hub.change = lambda _: "x" * 70_000
        with pytest.raises(ExitError):
            await retired(folder, tmp_path / "ledger.jsonl")
        hub.change = lambda reply: reply
        done = await retired(folder, tmp_path / "ledger.jsonl")
        assert done.ledger is not None
        assert [each.ledger for each in hub.registry.devices()] == [done.ledger.sha256]


@pytest.mark.parametrize("kept", [0, 1, 3, 6])
async def test_power_lost_while_wiping_goes_on_and_never_leaves_a_half_device(tmp_path, kept):
    async with serve_identity_hub(tmp_path) as hub:
        folder = await device(hub, tmp_path / "d")
    names = sorted(path.name for path in folder.iterdir())
    (folder / retirement.WIPING_FILE).write_bytes(b"")
    for name in names[kept:]:  # the disk may lose files in any order
        (folder / name).unlink()
    done = await retired(folder, tmp_path / "ledger.jsonl")
    assert (done.ledger, done.left) == (None, ())
    assert not (tmp_path / "ledger.jsonl").exists()
    assert not (folder / retirement.WIPING_FILE).exists()


async def test_the_ledger_does_not_go_where_it_would_be_wiped_or_over_something_else(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        folder = await device(hub, tmp_path / "d")
        with pytest.raises(ExitError) as stop:
            await retired(folder, folder / "ledger.jsonl")
        assert stop.value.code is ExitCode.USAGE
        (tmp_path / "mine").write_text('{"entries":1}\n')
        with pytest.raises(ExitError, match="name another"):
            await retired(folder, tmp_path / "mine")
        assert (tmp_path / "mine").read_text() == '{"entries":1}\n'
    load_identity(folder).tls_context()


async def test_an_edited_ledger_is_not_taken_for_the_devices_own(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        folder = await device(hub, tmp_path / "d")
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises(ExitError):
        await retired(folder, ledger)
    ledger.write_bytes(ledger.read_bytes().replace(b"hub-1", b"hub-2", 1))
    with pytest.raises(ExitError, match="no whole ledger"):
        await retired(folder, ledger, offline=True)


async def test_a_damaged_database_is_told_before_anything_is_wiped(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        folder = await device(hub, tmp_path / "d")
        for path in folder.glob("agent.db*"):
            path.unlink()
        (folder / "agent.db").write_bytes(b"no database at all " * 500)
        with pytest.raises(ExitError, match="damaged") as stop:
            await retired(folder, tmp_path / "ledger.jsonl")
    assert stop.value.code is ExitCode.DATABASE
    load_identity(folder).tls_context()


async def test_a_device_that_never_asked_leaves_an_empty_ledger(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        await hub.enrol(tmp_path / "d")
        done = await retired(tmp_path / "d", tmp_path / "ledger.jsonl")
        assert done.ledger is not None
        assert (done.ledger.entries, done.ledger.outcomes) == (0, 0)
        check(tmp_path / "ledger.jsonl", hub.registry.devices()[0].signing_key)


async def test_every_accepted_question_has_its_outcome_before_the_export(tmp_path):
    async with serve_identity_hub(tmp_path) as hub:
        folder = await device(hub, tmp_path / "d", questions=5)
        hub.change = lambda _: "x" * 70_000
        with pytest.raises(ExitError):
            await retired(folder, tmp_path / "ledger.jsonl")
    db = sqlite3.connect(folder / "agent.db")
    accepted = {row[0] for row in db.execute("select seq from ledger where kind='question'")}
    ended = {row[0] for row in db.execute("select seq from outcomes")}
    assert accepted == ended
    assert len(accepted) == 5
    assert db.execute("select count(*) from outbox").fetchone() == (0,)
    db.close()
