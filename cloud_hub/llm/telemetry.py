"""Counts, times and trace spans of language-model requests.

Rule: size is bounded by the models and their replicas, never by what callers send. A request is a span only if its
caller's traceparent says that it is recorded.
"""

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from urllib.parse import urlsplit

from cloud_hub.llm.model import LlmRecord
from cloud_hub.serving.telemetry import COMPUTE, QUEUE, LatencyHistogram, SpanSink
from cloud_hub.storage.costs import DAY_MS, US_PER_S, CostKind, Usage
from wire.process.tracing import Attribute, Span, TraceContext, parse_traceparent

PREFILL, DECODE = "skerry.prefill", "skerry.decode"


class LlmOutcome(StrEnum):
    """What became of a request.

    `refused`: by the hub, before an engine saw it; `invalid`: by the engine, which says what is wrong with it;
    `failed`: no engine began to answer; `broken`: an engine ended in the middle; `hung_up`: its caller did.
    """

    ANSWERED = "answered"
    REFUSED = "refused"
    INVALID = "invalid"
    FAILED = "failed"
    BROKEN = "broken"
    HUNG_UP = "hung_up"


class TokenKind(StrEnum):
    """Tokens by what they cost: of prompts, as computed and out of the prefix cache, and of answers."""

    INPUT = "input"
    CACHED = "cached"
    OUTPUT = "output"


class LlmMeter:
    """Counts of one model: `outcomes` of requests, `tokens` by kind, times `queued` and until the `first` byte.

    `estimated`: those among the tokens that no engine counted.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[LlmOutcome] = Counter()
        self.tokens: Counter[TokenKind] = Counter()
        self.estimated = 0
        self.queued = LatencyHistogram()
        self.first = LatencyHistogram()

    def on_refused(self, code: str) -> None:
        """Count a request that was never begun to be answered; `code` of its error."""
        self.outcomes[LlmOutcome.FAILED if code.startswith("engine_") else LlmOutcome.REFUSED] += 1

    def on_ended(self, record: LlmRecord) -> None:
        """Count a request that was begun to be answered."""
        self.outcomes[find_outcome(record)] += 1
        self.tokens[TokenKind.INPUT] += record.prompt_tokens - record.cached_tokens
        self.tokens[TokenKind.CACHED] += record.cached_tokens
        self.tokens[TokenKind.OUTPUT] += record.generated_tokens
        self.estimated += record.estimated_tokens
        self.queued.add(record.begun_at - record.arrived_at)
        self.first.add(record.first_at - record.begun_at)


def find_outcome(record: LlmRecord) -> LlmOutcome:
    """Return what became of a request that was begun to be answered."""
    if record.status != 200:
        return LlmOutcome.INVALID
    if record.complete:
        return LlmOutcome.ANSWERED
    return LlmOutcome.BROKEN if record.broken else LlmOutcome.HUNG_UP


def create_spans(record: LlmRecord) -> list[Span]:
    """Return the spans of a request: queue, prefill and decode of a stream, or queue and compute. [] = not traced.

    They stand below the hub's own span, that of the HTTP request, by whose id they are told apart.
    """
    at = parse_traceparent(record.caller.trace)
    if at is None:
        return []
    facts: dict[str, Attribute] = {"skerry.model": record.model, "skerry.replica": record.replica}
    tokens: dict[str, Attribute] = {
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.generated_tokens,
    }
    queue = _create_span(at, QUEUE, (record.arrived_at, record.begun_at), {"skerry.model": record.model})
    if not record.stream:
        return [queue, _create_span(at, COMPUTE, (record.begun_at, record.ended_at), {**facts, **tokens})]
    prefill = {**facts, "skerry.cached_tokens": record.cached_tokens}
    decode = {**tokens, "skerry.outcome": find_outcome(record).value}
    return [
        queue,
        _create_span(at, PREFILL, (record.begun_at, record.first_at), prefill),
        _create_span(at, DECODE, (record.first_at, record.ended_at), decode),
    ]


def _create_span(at: TraceContext, name: str, times: tuple[float, float], facts: dict[str, Attribute]) -> Span:
    return at.create_span(name, at.parent, times, facts)


def describe_usage(record: LlmRecord) -> Usage:
    """Return what a request used, for the bill; its engine's time is from its turn to its end."""
    ok = record.status == 200
    return Usage(
        int(record.ended_at * 1000) // DAY_MS,
        record.caller.tenant,
        record.model,
        record.region,
        {
            CostKind.REQUESTS: int(ok),
            CostKind.ENGINE_US: round((record.ended_at - record.begun_at) * US_PER_S) if ok else 0,
            CostKind.TOKENS_IN: record.prompt_tokens - record.cached_tokens,
            CostKind.TOKENS_CACHED: record.cached_tokens,
            CostKind.TOKENS_OUT: record.generated_tokens,
            CostKind.BYTES: record.request_bytes if ok else 0,
            CostKind.TOKENS_ESTIMATED: record.estimated_tokens,
        },
    )


def is_computed_here(record: LlmRecord) -> bool:
    """Whether a server on this machine computed the answer."""
    return urlsplit(record.replica).hostname in {"localhost", "127.0.0.1", "::1"}


def trace_records(sink: SpanSink) -> Callable[[LlmRecord], None]:
    """Return a sink of records that hands their spans to `sink`."""

    def send(record: LlmRecord) -> None:
        spans = create_spans(record)
        if spans:
            sink(spans)

    return send
