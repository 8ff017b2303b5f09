"""What was used, by day, tenant, model and region, for the bill: requests, engine time, tokens, bytes, energy.

Rule: what an answer cost is added in the commit that stores the answer, so that each is counted once, whatever is
repeated or lost. An answer that is stored nowhere (of web requests and language models) is added when it has ended; it
is not counted where the database lost the connection in the middle of that commit, so that nothing is billed twice.
Rule: amounts are whole numbers of the smallest unit, so that sums are exact; prices are put on them when they are read.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

import msgspec
import sqlalchemy as sa

from cloud_hub.core.commands import LOCAL, QuestionEnding
from cloud_hub.core.queues import Batch
from cloud_hub.database.connection import connect_part, read_snapshot
from cloud_hub.database.parts import QUESTIONS
from cloud_hub.database.statements import write_rows
from cloud_hub.database.tables import costs
from policies.serving.fair_queue import extract_tenant
from wire.protocol.messages import TextUsage

DAY_MS = 86_400_000
KEPT_DAYS = 400  # a year, and time to write its bill
US_PER_S = 1_000_000


class CostKind(StrEnum):
    """What is counted. Of a prompt's tokens those out of the prefix cache are `tokens_cached`, the others `tokens_in`.

    `engine_us`: microseconds of an engine, those of a batch shared by the weights of its items. `bytes`: of requests,
    as they came. `joules`: of this machine's graphics cards, shared by engine seconds; what is idle has its own line.
    `tokens_estimated`: those among the tokens above that no engine counted, of calls that ended before it said.
    """

    REQUESTS = "requests"
    ENGINE_US = "engine_us"
    TOKENS_IN = "tokens_in"
    TOKENS_CACHED = "tokens_cached"
    TOKENS_OUT = "tokens_out"
    BYTES = "bytes"
    JOULES = "joules"
    TOKENS_ESTIMATED = "tokens_estimated"


class Usage(msgspec.Struct, frozen=True):
    """What one request used. `day`: days since 1970, UTC; `tenant` "" = keys of the whole hub."""

    day: int
    tenant: str
    model: str
    region: str
    amounts: dict[CostKind, int]


class CostEntry(msgspec.Struct, frozen=True, order=True):
    """One row: a sum of a day."""

    day: int
    tenant: str
    model: str
    region: str
    kind: str
    amount: int


_REQUESTS, _ENGINE_US, _BYTES = CostKind.REQUESTS.value, CostKind.ENGINE_US.value, CostKind.BYTES.value
CostRow = tuple[int, str, str, str, str, int]  # the fields of a `CostEntry`


def describe_batch(batch: Batch, compute_s: float, region: str, now: float) -> list[Usage]:
    """Return what the web requests in a computed batch used. `compute_s`: its engine's seconds; `now` in hub seconds.

    A request of several samples counts with its first one.
    """
    total = batch.weight
    return [
        Usage(
            int(now * 1000) // DAY_MS,
            item.tenant,
            batch.model,
            region,
            {
                CostKind.REQUESTS: int(item.key.seq == 0),
                CostKind.ENGINE_US: round(compute_s * US_PER_S * item.weight / total),
                CostKind.BYTES: item.request_bytes,
            },
        )
        for item in batch.items
        if item.key.device == LOCAL
    ]


def merge_usages(used: Iterable[Usage]) -> list[Usage]:
    """Return one usage for each day, tenant, model and region, so that what waits to be written stays small."""
    sums: dict[tuple[int, str, str, str], Counter[CostKind]] = {}
    for each in used:
        sums.setdefault((each.day, each.tenant, each.model, each.region), Counter()).update(each.amounts)
    return [Usage(*key, dict(amounts)) for key, amounts in sums.items()]


def add_costs(connection: sa.Connection, endings: Iterable[QuestionEnding], used: Iterable[Usage]) -> None:
    """Add to the sums what these endings used, and what else was used."""
    rows = (CostEntry(*row) for row in sum_costs(endings, used))
    write_rows(connection, costs, map(msgspec.structs.asdict, rows), added=("amount",))


def sum_costs(endings: Iterable[QuestionEnding], used: Iterable[Usage]) -> list[CostRow]:
    """Sums of what verdicts used and of what else was used; a question that was refused uses nothing.

    A text is billed under the name of the language model that wrote it, by its tokens.
    """
    sums: Counter[tuple[int, str, str, str, str]] = Counter()
    for each in endings:
        if each.verdict:
            model = each.usage.model if each.usage else each.model
            day, tenant, region = each.ended_ms // DAY_MS, extract_tenant(each.key.device), each.region
            sums[day, tenant, model, region, _REQUESTS] += 1
            sums[day, tenant, model, region, _ENGINE_US] += each.engine_us
            sums[day, tenant, model, region, _BYTES] += each.question_bytes
            for kind, amount in _count_tokens(each.usage).items():
                sums[day, tenant, model, region, kind.value] += amount
    for usage in used:
        for kind, amount in usage.amounts.items():
            sums[usage.day, usage.tenant, usage.model, usage.region, kind.value] += amount
    return [(*key, amount) for key, amount in sums.items() if amount]


def _count_tokens(usage: TextUsage | None) -> dict[CostKind, int]:
    if usage is None:
        return {}
    return {
        CostKind.TOKENS_IN: usage.prompt_tokens - usage.cached_tokens,
        CostKind.TOKENS_CACHED: usage.cached_tokens,
        CostKind.TOKENS_OUT: usage.generated_tokens,
        CostKind.TOKENS_ESTIMATED: (usage.prompt_tokens + usage.generated_tokens) * usage.estimated,
    }


def purge_costs(connection: sa.Connection, today: int) -> None:
    """Delete sums of days that are longer ago than bills are written."""
    connection.execute(costs.delete().where(costs.c.day < today - KEPT_DAYS))


def read_costs_aside(url: str, since_day: int, tenant: str | None = None) -> list[CostEntry]:
    """Read the sums since a day, of one tenant or of all, over a connection of its own."""
    columns = [costs.c[name] for name in CostEntry.__struct_fields__]
    query = sa.select(*columns).where(costs.c.day >= since_day)
    if tenant is not None:
        query = query.where(costs.c.tenant == tenant)
    engine = connect_part(url, QUESTIONS)
    try:
        with read_snapshot(engine) as connection:
            return sorted(CostEntry(*row) for row in connection.execute(query))
    finally:
        engine.dispose()
