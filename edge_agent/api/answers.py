"""HTTP routes of recorded answers (`/v1/answers`, `/v1/events`): records, explanation, feedback, erasure, event stream.

Rule: delivery here is at least once, under stable ids (`event`, `answer_id`); exactly once is a property of the record.
Event streams are server-sent events (WHATWG HTML, section 9.2).
"""

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web

from edge_agent.api.service import AnswerService, find_label_name, is_answer_id, make_answer_json, parse_truth
from edge_agent.question.records import EventRecord
from wire.http.guards import read_body
from wire.http.oip import OipError, shorten_name

MAX_WAIT_S = 60.0
DEFAULT_LISTED, MAX_LISTED = 100, 1000
LIST_S = 2.0
MAX_STREAMS = 16
HEARTBEAT_S = 5.0  # also how soon a client that went away is noticed
MAX_FEEDBACK_BYTES = 1024
_MAX_EVENT = 2**63 - 1
_SUBJECT_HASH = re.compile(r"[0-9a-f]{64}")


class _FeedbackBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a feedback request: a label's number or name, or a regressor's value."""

    truth: int | float | str


class AnswerRoutes:
    """Routes under `/v1/answers`, `/v1/events` and `/v1/subjects`.

    `heartbeat_s`: how often an idle event stream sends a comment line, which also detects a client that has gone.
    """

    def __init__(self, service: AnswerService, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._service = service
        self._heartbeat_s = heartbeat_s
        self._streams: set[asyncio.Task[Any]] = set()

    def route_table(self) -> list[web.RouteDef]:
        """All routes with their handlers, for `web.Application.add_routes`."""
        return [
            web.get("/v1/answers", self.list_answers),
            web.get("/v1/answers/{id}", self.get_answer),
            web.get("/v1/answers/{id}/why", self.explain_answer),
            web.post("/v1/answers/{id}/feedback", self.post_feedback),
            web.get("/v1/events", self.stream_events),
            web.post("/v1/subjects/{subject}/erase", self.erase_subject),
        ]

    async def list_answers(self, request: web.Request) -> web.Response:
        """`GET /v1/answers`: the newest records, oldest first, at most `?limit=` (100, up to 1000).

        `last_event`: number of the newest one; `/v1/events?after=` goes on from there.
        """
        limit, last = _parse_limit(request), await self._service.last_event()
        found: list[EventRecord] = []
        if last:
            with contextlib.suppress(TimeoutError):  # the newest one was erased meanwhile
                await asyncio.wait_for(self._collect(found, max(0, last - limit), last), LIST_S)
        rows = [{**make_answer_json(each.answer, self._service.manifest), "event": each.event} for each in found]
        return _json_response({"records": rows, "last_event": last})

    async def _collect(self, found: list[EventRecord], after: int, last: int) -> None:
        async for record in self._service.events(after):
            found.append(record)
            if record.event >= last:
                return

    async def get_answer(self, request: web.Request) -> web.Response:
        """`GET /v1/answers/{id}`: all records of an answer, that is the answer and then its correction.

        Waits up to `?wait_s=` seconds (at most 60) while a correction is still owed. 404 for an unknown id.
        """
        records = await self._service.wait(_parse_answer_id(request), _parse_wait_s(request))
        if not records:
            raise _unknown_answer(request)
        rows = [make_answer_json(record, self._service.manifest) for record in records]
        return _json_response({"answer_id": records[0].id, "records": rows})

    async def explain_answer(self, request: web.Request) -> web.Response:
        """`GET /v1/answers/{id}/why`: everything kept about one answer.

        Its records, what left the device for it, how its question ended, and `words`: the same in sentences. 404 for an
        unknown id.
        """
        facts = await self._service.explain(_parse_answer_id(request))
        if not facts:
            raise _unknown_answer(request)
        for record in facts.get("records", []):
            record["label_name"] = find_label_name(record["prediction"]["label"], self._service.manifest)
        from edge_agent.api.explanation import explain_answer  # noqa: PLC0415 - seldom asked for

        facts["words"] = [{"about": line.about, "text": line.text} for line in explain_answer(facts)]
        return _json_response(facts)

    async def erase_subject(self, request: web.Request) -> web.Response:
        """`POST /v1/subjects/{subject}/erase`: forget the data subject that this keyed hash stands for, on this device.

        Returns how many answers were erased, and in `left` a line for each file that may still hold them.
        `skerry erase` asks the hubs as well.
        """
        subject = request.match_info["subject"]
        if not _SUBJECT_HASH.fullmatch(subject):
            raise OipError(404, "a subject is named by its keyed hash: 64 hexadecimal characters")
        return _json_response(msgspec.structs.asdict(await self._service.erase(bytes.fromhex(subject))))

    async def post_feedback(self, request: web.Request) -> web.Response:
        """`POST /v1/answers/{id}/feedback`: record the true label, `{"truth": 7}` or `{"truth": "seven"}`.

        For a regressor its true value, `{"truth": 87.5}`. 400 if the model here gives no such answer.
        """
        body = await read_body(request, MAX_FEEDBACK_BYTES)
        try:
            truth = parse_truth(msgspec.json.decode(body, type=_FeedbackBody).truth, self._service.manifest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise OipError(400, 'the body is {"truth": label}, a number or a name') from None
        if truth is None:
            raise OipError(400, "truth is no label or value of the model here")
        if not await self._service.feedback(_parse_answer_id(request), truth):
            raise _unknown_answer(request)
        return _json_response({"answer_id": _parse_answer_id(request), "truth": truth})

    async def stream_events(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/events`: records as server-sent events, from after `Last-Event-ID` (or `?after=`) on.

        Without either it starts with the next record. 503 while 16 streams are open already.
        """
        after = _parse_after(request)
        if after is None:
            after = await self._service.last_event()
        if len(self._streams) >= MAX_STREAMS:
            raise OipError(503, f"{MAX_STREAMS} event streams are open already")
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a handler always runs in a task")
        self._streams.add(task)
        try:
            return await self._stream(request, after)
        finally:
            self._streams.discard(task)

    async def close_streams(self, _: web.Application) -> None:
        """End every event stream: a server that stops does not wait for its listeners."""
        for task in self._streams:
            task.cancel()

    async def _stream(self, request: web.Request, after: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            await response.write(
                b"retry: 2000\nid: %d\n\n" % after
            )  # who is cut off before the first event goes on here
            async for record in add_heartbeats(self._service.events(after), self._heartbeat_s):
                await response.write(b": beat\n\n" if record is None else self._encode_event(record))
        return response

    def _encode_event(self, record: EventRecord) -> bytes:
        """One server-sent event.

        `id` is the event's number for ever: what a client sends back as `Last-Event-ID`.
        """
        data = msgspec.json.encode({**make_answer_json(record.answer, self._service.manifest), "event": record.event})
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (record.event, record.answer.kind.encode(), data)


async def add_heartbeats(records: AsyncIterator[EventRecord], every_s: float) -> AsyncIterator[EventRecord | None]:
    """Each record as it comes, and None whenever none came for `every_s` seconds."""
    iterator = aiter(records)
    coming = asyncio.ensure_future(anext(iterator, None))
    try:
        while True:
            done, _ = await asyncio.wait({coming}, timeout=every_s)
            if not done:
                yield None
                continue
            record = coming.result()
            if record is None:
                return
            yield record
            coming = asyncio.ensure_future(anext(iterator, None))
    finally:
        coming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await coming


def _parse_answer_id(request: web.Request) -> str:
    answer = request.match_info["id"]
    if not is_answer_id(answer):
        raise OipError(404, f"'{shorten_name(answer)}' is no answer id: 32 hexadecimal characters")
    return answer


def _unknown_answer(request: web.Request) -> OipError:
    return OipError(404, f"no answer {request.match_info['id']} is known here")


def _parse_limit(request: web.Request) -> int:
    text = request.query.get("limit", str(DEFAULT_LISTED))
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MAX_LISTED):
        raise OipError(400, f"limit is a whole number from 1 to {MAX_LISTED}")
    return int(text)


def _parse_wait_s(request: web.Request) -> float:
    text = request.query.get("wait_s", "0")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise OipError(400, "wait_s is a number of seconds")
    return min(value, MAX_WAIT_S)


def _parse_after(request: web.Request) -> int | None:
    text = request.headers.get("Last-Event-ID") or request.query.get("after")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= _MAX_EVENT):
        raise OipError(400, "Last-Event-ID (or after) is the number of an event")
    return int(text[:20])


def _json_response(data: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(data), content_type="application/json")
