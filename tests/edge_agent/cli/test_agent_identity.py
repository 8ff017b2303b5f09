"""`skerry agent enrol|renew|retire` on the command line, against the identity endpoints of a real hub."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloud_hub.registry.device_states import DeviceState
from edge_agent.cli.agent import app
from edge_agent.identity.identity import folder_is_enrolled, load_identity
from tests.edge_agent.doubles.identity_hub import DEVICE, serve_identity_hub
from wire.process.daemon import FolderLock
from wire.process.exit_codes import ExitCode, ExitError


async def types(*words: str) -> str:
    """What is printed. ExitError as the process would end with it."""

    def run() -> str:
        result = CliRunner().invoke(app, list(words))
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return await asyncio.to_thread(run)


async def refused(*words: str) -> ExitCode:
    with pytest.raises(ExitError) as stop:
        await types(*words)
    return stop.value.code


async def test_a_machine_enrols_with_its_serial_number_renews_and_retires(tmp_path: Path):
    folder, ledger = str(tmp_path / "cam-1"), str(tmp_path / "ledger.jsonl")
    async with serve_identity_hub(tmp_path) as hub:
        invite = hub.invite("SN-1")
        assert await refused("enrol", invite, "--dir", folder, "--serial", "SN-2") is ExitCode.ENROLMENT
        assert DEVICE in await types("enrol", invite, "--dir", folder, "--serial", "SN-1")
        before = load_identity(tmp_path / "cam-1").signing_id
        assert "good until" in await types("renew", "--dir", folder)
        assert load_identity(tmp_path / "cam-1").signing_id == before
        assert await refused("retire", "--dir", folder, "--ledger", ledger) is ExitCode.USAGE  # nobody said yes
        assert folder_is_enrolled(tmp_path / "cam-1")
        assert "0 entries" in await types("retire", "--dir", folder, "--ledger", ledger, "--yes")
        assert [each.state for each in hub.registry.devices()] == [DeviceState.RETIRED]
    assert not folder_is_enrolled(tmp_path / "cam-1")


async def test_beside_a_running_agent_nothing_is_renewed_or_wiped(tmp_path: Path):
    folder = str(tmp_path / "cam-1")
    async with serve_identity_hub(tmp_path) as hub:
        await hub.enrol(tmp_path / "cam-1")
        with FolderLock(tmp_path / "cam-1"):
            assert await refused("renew", "--dir", folder) is ExitCode.LOCKED
            words = ("retire", "--dir", folder, "--ledger", str(tmp_path / "l"), "--yes")
            assert await refused(*words) is ExitCode.LOCKED
    load_identity(tmp_path / "cam-1").tls_context()


async def test_offline_the_person_is_told_what_is_left_to_do(tmp_path: Path):
    async with serve_identity_hub(tmp_path) as hub:
        await hub.enrol(tmp_path / "cam-1")
    words = ("retire", "--dir", str(tmp_path / "cam-1"), "--ledger", str(tmp_path / "l"), "--yes")
    assert await refused(*words) is ExitCode.HUB
    assert "skerry devices retire" in await types(*words, "--offline")
