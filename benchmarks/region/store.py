"""Benchmark: the store of questions alone, one writer, groups of 64: PostgreSQL over SQLite, and under leases.

`python -m benchmarks.region.store`. Both are durable (`synchronous_commit` on, WAL with synchronous=FULL), and stand on
the same disk. Group after group they take turns, each keeping 64 questions and then ending them.
"""

import asyncio
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import US, Figure, format_number
from cloud_hub.core.commands import QuestionEnding, QuestionKey, StoredQuestion
from cloud_hub.region.leases import LeaseId, LeaseKind, LeaseTable
from cloud_hub.storage.jobs import ShardClaim, StoreJob
from cloud_hub.storage.store import Store
from tests.postgres import PostgresServer
from wire.protocol.topics import HUB_NAME, compute_shard

GROUP, GROUPS, ROUNDS = 64, 40, 7
DEVICES, LABELS = 8, 10
FRAME_BYTES, VERDICT_BYTES = 1028, 400
AT_MS = 1_700_000_000_000
LIMIT = 0.7


class StoreSpeed(NamedTuple):
    """Rows a second, and seconds of this process's processor for each row."""

    kept_per_s: float
    ended_per_s: float
    keep_cpu_s: float
    end_cpu_s: float


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    return await asyncio.to_thread(measure_stores, folder)


def measure_stores(folder: Path) -> list[Figure]:
    """Keeping and ending, each of PostgreSQL over SQLite."""
    with PostgresServer() as server:
        stores = {
            "SQLite": Store.open(f"sqlite:///{folder / 'store.db'}"),
            "PostgreSQL": Store.open(server.create_database()),
        }
        fenced = Store.open(url := server.create_database())
        claims = _take_shards(url, fenced)
        seen: dict[str, list[StoreSpeed]] = {}
        for number in range(ROUNDS + 1):  # the first one warms up
            first = number * GROUPS * GROUP
            found = {name: _write_groups(store, first, set()) for name, store in stores.items()}
            found["under leases"] = _write_groups(fenced, first, claims)
            for name, speed in found.items():
                seen.setdefault(name, []).append(speed)
        for store in (*stores.values(), fenced):
            store.close()
    rounds = {name: found[1:] for name, found in seen.items()}
    return [_compare(name, at, rounds) for at, name in enumerate(("keeping", "ending"))]


def _compare(name: str, at: int, rounds: dict[str, list[StoreSpeed]]) -> Figure:
    ratios = [theirs[at] / ours[at] for ours, theirs in zip(rounds["SQLite"], rounds["PostgreSQL"], strict=True)]
    terms = [
        f"{who} {format_number(median(each[at] for each in found))} rows/s, "
        f"{format_number(median(each[at + 2] for each in found) * US)} us of the hub's processor a row"
        for who, found in rounds.items()
    ]
    return Figure(
        f"store, {name} questions in groups of {GROUP}: PostgreSQL over SQLite", median(ratios), "x", LIMIT,
        more_is_better=True, terms=(*terms, f"rounds: {', '.join(map(format_number, ratios))}"),
    )  # fmt: skip


def _take_shards(url: str, store: Store) -> set[ShardClaim]:
    """Give the store leases of the shards that are written, for longer than the benchmark takes."""
    table = LeaseTable.open(url, HUB_NAME, 3600.0)
    wanted = {LeaseId(LeaseKind.SHARD, compute_shard(f"demo--device-{number}")) for number in range(DEVICES)}
    held = table.renew_and_take(wanted).values()
    table.close()
    store.session = table.session
    return {ShardClaim(each.id.number, each.term) for each in held}


def _write_groups(store: Store, first: int, claims: set[ShardClaim]) -> StoreSpeed:
    kept, ended = [0.0, 0.0], [0.0, 0.0]
    for group in range(GROUPS):
        questions = _make_questions(first + group * GROUP)
        endings = [_make_ending(each, at) for at, each in enumerate(questions)]
        _add_times(kept, lambda: store.apply_jobs([StoreJob(keeps=questions, claims=set(claims))]))  # noqa: B023
        _add_times(ended, lambda: store.apply_jobs([StoreJob(endings=endings, claims=set(claims))]))  # noqa: B023
    rows = GROUP * GROUPS
    return StoreSpeed(rows / kept[0], rows / ended[0], kept[1] / rows, ended[1] / rows)


def _add_times(sums: list[float], work: Callable[[], object]) -> None:
    began, cpu = time.perf_counter(), time.thread_time()
    work()
    sums[0] += time.perf_counter() - began
    sums[1] += time.thread_time() - cpu


def _make_questions(first: int) -> list[StoredQuestion]:
    return [
        StoredQuestion(
            key=QuestionKey(f"demo--device-{seq % DEVICES}", 1 << 60, seq),
            model="digits@1", policy="0" * 32, created_ms=AT_MS, kept_ms=AT_MS + seq, digest=secrets.token_bytes(32),
            fingerprint=secrets.token_bytes(32), sealed=secrets.token_bytes(FRAME_BYTES), keep_until_ms=2 * AT_MS,
        )
        for seq in range(first, first + GROUP)
    ]  # fmt: skip


def _make_ending(question: StoredQuestion, at: int) -> QuestionEnding:
    return QuestionEnding(
        question.key, AT_MS + 500, verdict=secrets.token_bytes(VERDICT_BYTES), label=at % LABELS, model=question.model,
        region="local", engine_us=1000, question_bytes=FRAME_BYTES,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
