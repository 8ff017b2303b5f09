"""Hubs of a region that run jobs, each in a process that may be killed; what became of the jobs, by the database alone.

The database itself writes down every ending (a trigger), so that one that came twice would be seen.
"""

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple, Self

import sqlalchemy as sa

from benchmarks.harness.rig import ROOT
from benchmarks.jobs.hub import CARD, VALUES
from cloud_hub.jobs.sealing import JobVault
from cloud_hub.jobs.states import Job, JobState, make_job_id, shard_of_job
from cloud_hub.jobs.table import AddJobs, NewJob
from cloud_hub.region.vault import KEY_BYTES, RegionVault
from cloud_hub.storage.jobs import StoreJob
from cloud_hub.storage.store import Store
from simulations.processes import FOLLOW_PARENT
from tests.postgres import PostgresServer
from wire.protocol.topics import HUB_NAMES

LEASE_S = 2.0
PATIENCE_S = 120.0
STARTS = 3
DAY_MS = 86_400_000
_WATCH = (
    "create table public.endings (id text, state text)",
    """create function public.note_ending() returns trigger language plpgsql as $$ begin
      insert into public.endings values (new.id, new.state); return new; end $$""",
    """create trigger note_ending after update on questions.jobs for each row
      when (old.ended_ms is null and new.ended_ms is not null) execute function public.note_ending()""",
)
_HELD = """select l.hub, count(*) from questions.jobs j join region.leases l on l.kind = 'shard' and l.number = j.shard
  where j.state = 'running' and j.ended_ms is null and l.hub <> '' group by l.hub"""
_OPEN = "select count(*) from questions.jobs where ended_ms is null"


class JobsReport(NamedTuple):
    """What became of the jobs. `odd`: begun more often than once and once more for each hub that ended with them."""

    jobs: int
    answered: int
    dead: int
    lost: int
    doubled: int
    unexplained: int
    odd: int
    crashes: int


class JobsRegion:
    """Hubs `hub`, `hub-2`, ... over one database. `compute_s`: what a batch of 16 takes."""

    def __init__(self, folder: Path, server: PostgresServer, hubs: int, compute_s: float) -> None:
        self._folder = folder
        self._compute_s = compute_s
        self._names = HUB_NAMES[:hubs]
        self._url = server.create_database()
        self._engine = sa.create_engine(self._url, poolclass=sa.NullPool)
        self._key = secrets.token_bytes(KEY_BYTES)
        self._key_file = folder / "jobs.key"
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> Self:
        self._key_file.write_bytes(self._key)
        await self.start(self._names[0])  # it makes the tables
        with self._engine.begin() as connection:
            for statement in _WATCH:
                connection.exec_driver_sql(statement)
        await asyncio.gather(*(self.start(name) for name in self._names[1:]))
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()

    def query(self, text: str) -> list[tuple[object, ...]]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(text)]

    async def start(self, name: str) -> None:
        """Start a hub, and wait until it serves; again, as a service manager would, if it ends before."""
        for number in range(1, STARTS + 1):
            try:
                await self._start_once(name)
                break
            except RuntimeError as error:
                if number == STARTS:
                    raise
                print(error, file=sys.stderr)

    async def _start_once(self, name: str) -> None:
        words = (name, self._url, str(self._key_file), str(self._compute_s), str(LEASE_S))
        with (self._folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", FOLLOW_PARENT, str(os.getpid()), "-m", "benchmarks.jobs.hub", *words),
                cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._processes[name] = process
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        if line.strip() != b"ready":
            raise RuntimeError(f"{name} ended early: {(self._folder / f'{name}.log').read_text()[-2000:]}")

    async def kill(self, name: str) -> None:
        """End a hub without a word, as a power cut does."""
        self._processes[name].kill()
        await self._processes[name].wait()

    async def stop(self, name: str) -> tuple[float, dict[str, int]]:
        """Tell a hub to stop; the seconds it took, and what it counted of jobs."""
        process, began = self._processes[name], time.monotonic()
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        out = await asyncio.wait_for(process.stdout.read(), PATIENCE_S)
        await process.wait()
        return time.monotonic() - began, dict(json.loads(out.splitlines()[-1]))

    def held(self) -> dict[str, int]:
        """Jobs that each hub has in hand."""
        return {str(hub): int(str(count)) for hub, count in self.query(_HELD)}

    def count_open(self) -> int:
        return int(str(self.query(_OPEN)[0][0]))

    async def add_jobs(self, count: int) -> None:
        """Hand over so many jobs, as an API of one of the hubs would."""
        vault, store = JobVault(RegionVault(self._key)), Store.open(self._url)
        tensor = {"name": CARD.input.name, "datatype": "FP32", "shape": [1, VALUES], "data": [0.5] * VALUES}
        body = json.dumps({"inputs": [tensor]}).encode()
        try:
            for at in range(0, count, 1000):
                new = [_make_job(vault, body) for _ in range(min(1000, count - at))]
                await asyncio.to_thread(store.apply_jobs, [StoreJob(works=[AddJobs(new)])])
        finally:
            store.close()

    def judge(self, handed: int) -> JobsReport:
        """What became of so many jobs."""

        def count(where: str, what: str = "count(*)") -> int:
            return int(str(self.query(f"select coalesce({what}, 0) from questions.jobs where {where}")[0][0]))

        doubled = self.query("select count(*) from (select id from public.endings group by id having count(*) > 1) d")
        ended = count("ended_ms is not null")
        return JobsReport(
            jobs=handed,
            answered=count("state = 'answered'"),
            dead=count("state = 'dead'"),
            lost=handed - ended,
            doubled=int(str(doubled[0][0])),
            unexplained=count("state <> 'answered' and why = ''"),
            odd=count("state = 'answered' and claims <> crashes + 1"),
            crashes=count("true", "sum(crashes)"),
        )


def _make_job(vault: JobVault, body: bytes) -> NewJob:
    now_ms = int(time.time() * 1000)
    job_id = make_job_id(now_ms, secrets.token_bytes(10))
    job = Job(
        id=job_id, tenant=f"tenant-{secrets.randbelow(4)}", caller="bench", shard=shard_of_job(job_id),
        model=CARD.ref.name, state=JobState.QUEUED, made_ms=now_ms, not_before_ms=now_ms, timer_ms=now_ms + DAY_MS,
        timeout_ms=DAY_MS, fingerprint=b"f" * 32,
    )  # fmt: skip
    return NewJob(job, vault.seal_body(job_id, body))
