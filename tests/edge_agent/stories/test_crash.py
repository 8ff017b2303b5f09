"""kill -9 at each named point: each accepted question ends once, and each effect takes place once."""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.edge_agent.doubles.crash_child import POINTS, FileHub
from tests.edge_agent.doubles.hub_double import AgentRig, policy, until
from tests.examples import mark_further


def crash(folder: Path, point: str) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "tests.edge_agent.doubles.crash_child", folder, point],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr


def column(folder: Path, query: str) -> list[Any]:
    db = sqlite3.connect(folder / "agent.db")
    try:
        return [row[0] for row in db.execute(query)]
    finally:
        db.close()


@pytest.mark.parametrize("point", mark_further(POINTS, ("after_send",)))
async def test_kill_9_loses_nothing_accepted_and_doubles_nothing(tmp_path: Path, point: str):
    crash(tmp_path, point)
    accepted = column(tmp_path, "select id from ledger where kind='question' order by seq")
    assert accepted == [] if point == "in_transaction" else accepted
    hub = FileHub()
    hub.file = tmp_path / "effects"
    effects_before = read_effects(hub.file)
    hub.effects |= effects_before  # the hub did not die
    async with AgentRig(tmp_path, policy(), hub) as rig:
        await until(lambda: rig.open == 0)
        await until(lambda: len(column(tmp_path, "select seq from outcomes")) == len(accepted))
    assert column(tmp_path, "select id from ledger where kind='question' order by seq") == accepted
    assert column(tmp_path, "select id from outcomes where outcome='answered' order by seq") == accepted
    for kind in ("answer", "correction"):
        assert sorted(column(tmp_path, f"select id from answers where kind='{kind}'")) == sorted(accepted)
    assert column(tmp_path, "select count(*) from outbox") == [0]
    lines = hub.file.read_text().split("\n")[:-1] if hub.file.exists() else []
    assert len(lines) == len(set(lines)) == len(accepted)


def read_effects(file: Path) -> dict[tuple[int, int], bytes]:
    if not file.exists():
        return {}
    words = [line.split() for line in file.read_text().splitlines()]
    return {(int(epoch), int(seq)): bytes.fromhex(fingerprint) for epoch, seq, fingerprint in words}
