"""Answers of a device: values, how they are read from its replies, and the operations on answers given before."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from skerry_client.errors import APIResponseValidationError, check_seconds
from skerry_client.exchange.commands import (
    Items,
    Reply,
    Request,
    Steps,
    build_path,
    fetch_object,
    parse_object,
    post_json,
    send,
)
from skerry_client.exchange.events import ServerEvent, follow_events, persevere
from skerry_client.exchange.operations import AsyncCalls, BlockingCalls, iteration, operation
from skerry_client.inference import read_outputs
from skerry_client.reading import read_list, read_value

MAX_WAIT_S = 60.0  # the longest that an agent waits in one request
PATIENCE_S = 60.0
_SLACK_S = 30.0


class AnswerSource(StrEnum):
    """Where an answer was computed: on the device, or by the hub."""

    LOCAL = "local"
    HUB = "hub"


class AnswerKind(StrEnum):
    """An answer, or the later and better one of the same sample."""

    ANSWER = "answer"
    CORRECTION = "correction"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a language model counted for an answer."""

    model: str
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int = 0
    cut: bool = False
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations of an answer in seconds: on the device, in all, in the hub's queue and engine."""

    infer_s: float = 0.0
    total_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer, or its correction.

    `label` -1 and `value` a number: of a regressor. `in_domain` False: the sample is unlike what the model knows; None:
    it cannot tell. `text`, `usage`: of a language model. `reason`: why so, in one word (docs/agent-api.md lists them).
    `data_class`, `timings`, `at_ms`, `event`: None in the reply to `ask`, which comes before the record is written.
    """

    answer_id: str
    kind: AnswerKind
    source: AnswerSource
    reason: str
    label: int
    confidence: float
    scores: tuple[float, ...]
    model: str
    model_version: str
    label_name: str = ""
    value: float | None = None
    in_domain: bool | None = None
    text: str | None = None
    usage: Usage | None = None
    policy_hash: str = ""
    escalation_id: str = ""
    trace_id: str = ""
    data_class: str | None = None
    timings: Timings | None = None
    at_ms: int | None = None
    event: int | None = None

    @property
    def asked_hub(self) -> bool:
        """Whether the hub was asked about the sample."""
        return bool(self.escalation_id)

    @property
    def may_be_corrected(self) -> bool:
        """Whether the hub was asked and this is not what it said yet."""
        return self.asked_hub and self.source is AnswerSource.LOCAL


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an answer is what it is: everything the device keeps about it, as `skerry why --json` prints it.

    `records`: the answer and its correction; `facts`: these and what left for them, under which rule, and how it ended.
    """

    answer_id: str
    records: tuple[dict[str, Any], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


class AnswerOperations:
    """Answers given before: their records and corrections, why they are so, and what was true."""

    @operation
    def get(self, answer: "Answer | str", *, wait_s: float = 0.0) -> Steps[Answer]:
        """Return the best there is of an answer: its correction, else itself.

        Waits up to `wait_s` seconds while a correction is owed. NotFoundError for an unknown id.
        """
        return (yield from fetch_records(id_of(answer), WaitBudget(wait_s)))[-1]

    @operation
    def records(self, answer: "Answer | str", *, wait_s: float = 0.0) -> Steps[tuple[Answer, ...]]:
        """Return all records of an answer: the answer, and behind it its correction."""
        return (yield from fetch_records(id_of(answer), WaitBudget(wait_s)))

    @operation
    def correction(self, answer: "Answer | str", *, wait_s: float = 10.0) -> Steps[Answer | None]:
        """Return the hub's correction of an answer; None if none came within `wait_s`, or none is owed any more."""
        last = (yield from fetch_records(id_of(answer), WaitBudget(wait_s)))[-1]
        return last if last.kind is AnswerKind.CORRECTION else None

    @iteration
    def corrections(self, *, after: "Answer | int | None" = None, patience_s: float = PATIENCE_S) -> Items[Answer]:
        """Iterate over corrections as they come, for ever; it goes on where a connection broke.

        `after`: an answer or correction, or the number of an event, behind which to begin; left out: what is new from
        the first item on. Keep `event` of the last one to go on after a restart. A correction is given once.
        APIConnectionError once the device could not be reached for `patience_s`.
        """
        yield from _follow(after, patience_s, AnswerKind.CORRECTION)

    @iteration
    def events(self, *, after: "Answer | int | None" = None, patience_s: float = PATIENCE_S) -> Items[Answer]:
        """Iterate over answers and corrections as they are recorded; all else as in `corrections`."""
        yield from _follow(after, patience_s, None)

    @operation
    def why(self, answer: "Answer | str") -> Steps[Explanation]:
        """Return why an answer is what it is. NotFoundError for an unknown id."""
        name = id_of(answer)
        facts = yield from fetch_object(Request("GET", build_path("v1", "answers", name, "why"), safe=True))
        return Explanation(name, tuple(facts.get("records", ())), facts)

    @operation
    def feedback(self, answer: "Answer | str", truth: float | str) -> Steps[None]:
        """Tell the device what was true: a label's number or name, a regressor's value. BadRequestError if neither."""
        request = post_json(build_path("v1", "answers", id_of(answer), "feedback"), {"truth": truth})
        yield from send(replace(request, safe=True))  # the same truth twice is one


class Answers(AnswerOperations, BlockingCalls):
    """Answers of an agent; each call blocks until its reply is there."""


class AsyncAnswers(AnswerOperations, AsyncCalls):
    """Answers of an agent, on asyncio."""


def id_of(answer: Answer | str) -> str:
    """Return the id of an answer, or the id itself."""
    return answer.answer_id if isinstance(answer, Answer) else answer


@dataclass
class WaitBudget:
    """How long a call may still wait, in seconds; several answers may share one. ArgumentError for no such time."""

    left_s: float

    def __post_init__(self) -> None:
        check_seconds("wait_s", self.left_s)


def fetch_records(answer_id: str, budget: WaitBudget) -> Steps[tuple[Answer, ...]]:
    """Fetch the records of an answer, waiting within the budget while a correction is owed."""
    while True:
        this_s = max(0.0, min(budget.left_s, MAX_WAIT_S))
        path = build_path("v1", "answers", answer_id, wait_s=f"{this_s:g}" if this_s > 0 else None)
        request = Request("GET", path, timeout_s=this_s + _SLACK_S, safe=True)
        reply = yield from send(request)
        records = read_list(Answer, parse_object(reply.body, request.where), "records", request.where)
        if not records:
            raise APIResponseValidationError(f"{request.where}: the reply has no record")
        budget.left_s -= reply.elapsed_s
        if budget.left_s <= 0 or len(records) > 1 or reply.elapsed_s < this_s:
            return records


def _follow(after: Answer | int | None, patience_s: float, kind: AnswerKind | None) -> Items[Answer]:
    check_seconds("patience_s", patience_s)
    number = after if after is None or isinstance(after, int) else after.event
    if isinstance(after, Answer) and number is None:
        answer_id = after.answer_id
        records = yield from persevere(lambda: fetch_records(answer_id, WaitBudget(0.0)), patience_s)
        number = records[0].event

    def read(event: ServerEvent) -> Answer | None:
        if kind is not None and event.name != kind:
            return None
        return read_value(Answer, parse_object(event.data, "event"), "event")

    yield from follow_events("/v1/events", number, patience_s, read)


def read_inference(reply: Reply, where: str) -> list[Answer]:
    """Return the answers of an inference reply, one for each sample. APIResponseValidationError if it is none."""
    found = parse_object(reply.body, where)
    rows, told = read_outputs(found, where), found.get("parameters")
    if not isinstance(told, dict):
        raise APIResponseValidationError(f"{where}: the reply has no parameters; is this a Skerry agent?")
    for key, value in told.items():
        for row, part in zip(rows, _split_parameter(key, value, len(rows), where), strict=True):
            row.setdefault(key, part)
    kind_and_model = {"kind": AnswerKind.ANSWER, "model": found.get("model_name")}
    return [read_value(Answer, row | kind_and_model, where) for row in rows]


def _split_parameter(key: str, value: object, count: int, where: str) -> list[object]:
    """The values of a batch stand in one text with commas between."""
    parts: list[object] = [value] if count == 1 else [*str(value).split(",")]
    if len(parts) != count:
        raise APIResponseValidationError(f"{where}: {len(parts)} values of {key} for {count} samples")
    return [{"true": True, "false": False}.get(str(part)) for part in parts] if key == "in_domain" else parts
