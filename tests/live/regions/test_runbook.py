"""The runbook of a region of three, docs/running.md: every block, in order, on a real PostgreSQL server and broker."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import find_free_port
from tests import ROOT
from tests.blocks import Block, command, environment, of_mark
from tests.postgres import PostgresServer, find_programs

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(900)]

BLOCK_TIMEOUT_S = 400.0
PAGE = ROOT / "docs" / "running.md"
NAMES = "hub@db.example/skerry"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    if find_programs() is None:
        pytest.skip("PostgreSQL is not installed: ./setup.sh dev installs it")
    with PostgresServer() as started:
        yield started


class Reader:
    """Who types the page's blocks: in one folder, each in a session of its own, which is ended at the end."""

    def __init__(self, folder: Path, replaced: dict[str, str]) -> None:
        self.folder, self.replaced = folder, replaced
        self.sessions: list[int] = []

    def type(self, block: Block) -> None:
        text = block.text
        for name, real in self.replaced.items():
            text = text.replace(name, real)
        log = self.folder / f"line{block.line}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command(block._replace(text=text), self.folder), cwd=self.folder, env=environment(self.folder),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self.sessions.append(process.pid)
        code = process.wait(BLOCK_TIMEOUT_S)
        logs = "".join(each.read_text()[-1000:] for each in sorted(self.folder.glob("hub-*.log")))
        assert code == 0, f"{PAGE.name}:{block.line}\n{log.read_text()[-3000:]}\n{logs}"

    def end(self) -> None:
        for session in self.sessions:
            with suppress(ProcessLookupError):
                os.killpg(session, signal.SIGKILL)


def test_every_block_of_the_runbook_runs_on_a_region_of_three(tmp_path: Path, bundle: Bundle, server: PostgresServer):
    (tmp_path / "digits").symlink_to(bundle.path)
    url = server.create_database()
    replaced = {
        f"postgresql+psycopg://{NAMES}": url,
        f"postgresql://{NAMES}": url.replace("postgresql+psycopg", "postgresql"),
        "broker.example": "127.0.0.1",
        "18883": str(find_free_port()),
        "808": str(free_tens()),
    }
    reader = Reader(tmp_path, replaced)
    try:
        for block in of_mark(PAGE, "region"):
            reader.type(block)
    finally:
        reader.end()


def free_tens() -> int:
    """A number behind which the digits 1, 2 and 3 make three free ports."""
    while True:
        tens = find_free_port() // 10
        with suppress(OSError):
            for last in (1, 2, 3):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", tens * 10 + last))
            return tens
