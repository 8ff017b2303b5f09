"""Benchmark: bytes that reach the disk per purely local answer, with a record as old as a device keeps.

`python -m benchmarks.agent.flash_writes`. The agent's own process is counted by the kernel (`write_bytes` of
/proc/self/io: pages handed to the block layer), at one answer a second with time compressed: every interval of the
agent is divided by `PACE`. agent.db holds `ROWS` older answers and is pruned to as many all the time. Linux only, and
on a file system with a disk below it.
"""

import asyncio
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.agent.local_answer import _fail_connect, _make_identity
from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure, format_number
from benchmarks.harness.rig import POLICY
from edge_agent.app.agent import Agent
from edge_agent.question.records import AnswerRecord, Sample
from edge_agent.runtime.answering import draw_dice
from edge_agent.storage import answers
from edge_agent.storage.schema import open_connection
from edge_agent.system.settings import AgentSettings
from models.runtime.runner import EchoRunner
from policies.language.document import parse_policy

PACE = 100.0  # seconds of a device in one second of the benchmark
ANSWERS = 1500
ROWS = 20_000
LABELS = 10
DAY = 86_400
LIMIT_KB = 4.0


class WritingMode(NamedTuple):
    """One way of writing local answers: its name, and `answers_every_s` of the configuration."""

    name: str
    every_s: float


MODES = (
    WritingMode("each at once", 0.0),
    WritingMode("every 5 s", 5.0),
    WritingMode("the default", AgentSettings(state_dir=Path()).answers_every_s),
)


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    """Bytes written per answer in each mode; the limit is that of the default."""
    del bundle
    found = {mode: await _measure_mode(folder / f"mode-{number}", mode) for number, mode in enumerate(MODES)}
    terms = [
        f"{mode.name} ({mode.every_s:g} s): {format_number(size)} KB an answer,"
        f" {format_number(size * DAY / 1e6)} GB a day at one a second"
        for mode, size in found.items()
    ]
    terms.append(f"{ANSWERS} answers upon {ROWS} older ones, pruned every minute")
    return [Figure("written to disk per local answer", found[MODES[-1]], "KB", LIMIT_KB, terms=tuple(terms))]


async def _measure_mode(folder: Path, mode: WritingMode) -> float:
    """Kilobytes (1000) written per answer."""
    folder.mkdir()
    settings = AgentSettings(
        state_dir=folder, answers_every_s=mode.every_s / PACE, upkeep_s=60.0 / PACE, answers_max_rows=ROWS
    )
    rules = parse_policy(POLICY.format(mode="answer_now", threshold=0.0)).compile()
    agent = Agent(settings, _make_identity(folder), EchoRunner(LABELS), rules, _fail_connect)
    sample = Sample(np.eye(LABELS, dtype=np.float32)[0], "open", trace=f"00-{'1' * 32}-{'2' * 16}-01")
    await agent.open()
    record = agent.answer_now(sample)
    assert isinstance(record, AnswerRecord)
    _fill_record(folder, record)
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(120 / PACE)
    before, loop = read_written_bytes(), asyncio.get_running_loop()
    began = loop.time()
    for number in range(ANSWERS):
        agent.answer_now(sample)
        await asyncio.sleep(began + (number + 1) / PACE - loop.time())
    agent.stop()
    await running
    return (read_written_bytes() - before) / ANSWERS / 1000


def _fill_record(folder: Path, record: AnswerRecord) -> None:
    """Write `ROWS` answers of the time before, one a second."""
    db = open_connection(folder / "agent.db").db
    db.execute("begin")
    for number in range(ROWS, 0, -1):
        at_ms = record.at_ms - number * 1000
        answers.insert_answer(db, msgspec.structs.replace(record, id=draw_dice(at_ms).id, at_ms=at_ms))
    db.execute("commit")
    db.close()


def read_written_bytes() -> int:
    """What this process has handed to the block layer so far, bytes."""
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/io has no write_bytes")


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
