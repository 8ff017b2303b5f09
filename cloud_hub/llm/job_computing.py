"""Jobs of language models: a chat, completion or embedding that waits for its turn like every request of its tenant.

Rule: what the request causes ends the job; what the hub or the engines cause (busy, over a rate, not ready) does not.
"""

import asyncio

import msgspec

from cloud_hub.jobs.decisions import JobAnswer, JobOutcome, JobRefusal
from cloud_hub.jobs.runner import JobComputer
from cloud_hub.jobs.states import Job
from cloud_hub.llm.engine_errors import read_report
from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.model import LlmCaller
from cloud_hub.llm.requests import LlmOperation, LlmRequest, parse_request
from cloud_hub.llm.service import LanguageModels
from wire.http.oip import OipError
from wire.protocol.messages import RefusalReason

_OPERATIONS = {
    "messages": LlmOperation.CHAT,
    "prompt": LlmOperation.COMPLETION,
    "input": LlmOperation.EMBEDDING,
}
_REASONS = {429: RefusalReason.RATE, 503: RefusalReason.BUSY}


class LanguageComputer:
    """Computes jobs that name a language model; all others are handed to `others`."""

    def __init__(self, models: LanguageModels, others: JobComputer) -> None:
        self._models = models
        self._others = others

    def check(self, model: str, body: bytes, tenant: str) -> None:
        """OipError(404 or 400) if this tenant is served no such model, or it does not take the request."""
        if not self._serves(model, tenant):
            self._others.check(model, body, tenant)
            return
        try:
            _read_request(model, body)
        except LlmError as error:
            raise OipError(error.status, str(error)) from None

    async def compute(self, job: Job, body: bytes, timeout_s: float) -> JobOutcome:
        """Compute a job; every refusal is an outcome. `timeout_s`: what is left of its own time."""
        if not self._serves(job.model, job.tenant):
            return await self._others.compute(job, body, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(job, body)
        except TimeoutError:
            return JobRefusal(RefusalReason.EXPIRED)
        except LlmError as error:
            return _describe_refusal(error)

    def _serves(self, model: str, tenant: str) -> bool:
        return any(each.settings.name == model for each in self._models.list_models(tenant))

    async def _ask(self, job: Job, body: bytes) -> JobOutcome:
        asked = _read_request(job.model, body)
        caller = LlmCaller(job.tenant, job.caller)
        encoded = asked.encode(job.model, stream=False)
        async with self._models.answer(encoded, asked.operation, caller) as answer:
            if answer.status == 200:
                return JobAnswer(answer.body)
            why = read_report(answer.body).message or f"the engine refuses it with status {answer.status}"
            return JobRefusal(RefusalReason.SCHEMA, detail=why)


class _JobFields(msgspec.Struct, frozen=True):
    """Fields that say what a job asks for; empty where it has none. All others are skipped."""

    model: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


_decode_fields = msgspec.json.Decoder(_JobFields)


def _read_request(model: str, body: bytes) -> LlmRequest:
    """Read the request of a job. LlmError(400) if it is none; it may leave out its model, and is never streamed."""
    try:
        fields = _decode_fields.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise LlmError(400, "the request is no JSON object", code="invalid_json") from None
    named = [operation for field, operation in _OPERATIONS.items() if len(getattr(fields, field))]
    if len(named) != 1:
        raise LlmError(400, "the request of a language model has 'messages', 'prompt' or 'input'")
    if not len(fields.model):
        body = b'{"model":' + msgspec.json.encode(model) + b"," + body.lstrip().removeprefix(b"{")
    asked = parse_request(body, named[0])
    if asked.model != model:
        raise LlmError(400, "the request names another model than its job", param="model")
    if asked.stream:
        raise LlmError(400, "a job is answered in one piece: leave out 'stream'", param="stream")
    return asked


def _describe_refusal(error: LlmError) -> JobRefusal:
    if error.status in _REASONS:
        return JobRefusal(_REASONS[error.status], error.retry_after_s)
    if error.status < 500 and error.status != 404:
        return JobRefusal(RefusalReason.SCHEMA, detail=str(error))
    return JobRefusal(RefusalReason.MODEL_GONE, detail=str(error))  # tried again, a few times
