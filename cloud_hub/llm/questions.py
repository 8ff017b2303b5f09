"""Asks a language model what devices want to know, through the same queue, replicas and failover as every caller.

Rule: what is said by the engine is read strictly: an answer without a text, or that is no JSON, is a failure. One
without a usage is counted by the hub and marked so.
Source: OpenAI API reference, chat completions.
"""

import msgspec

from cloud_hub.llm.engine_errors import ReplicaFailedError
from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.events import UpstreamBrokenError, read_whole
from cloud_hub.llm.model import LlmCaller
from cloud_hub.llm.relay import LlmAnswer
from cloud_hub.llm.requests import LlmOperation
from cloud_hub.llm.service import LanguageModels
from cloud_hub.llm.token_estimate import BYTES_PER_TOKEN
from cloud_hub.serving.text import TextFailedError, TextQuestion, TextReply
from wire.protocol.messages import TextUsage

_FOR_NOW = frozenset({429, 503})  # taken later: over the tenant's share, too much waiting, the hub is stopping
_CUT = "length"


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message
    finish_reason: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    choices: list[_Choice]


_decoder = msgspec.json.Decoder(_Answer)


class QuestionAsker:
    """Asks the hub's language models on behalf of devices."""

    def __init__(self, models: LanguageModels) -> None:
        self._models = models

    async def ask(self, question: TextQuestion) -> TextReply:
        """Ask and read the answer. TextFailedError if there is none, and whether it may be asked again."""
        body = _encode_request(question)
        caller = LlmCaller(question.tenant, question.flow, question.trace, question=not question.web)
        try:
            async with self._models.answer(body, LlmOperation.CHAT, caller) as answer:
                if answer.status != 200:
                    raise TextFailedError(f"the engine refuses the question with status {answer.status}")
                return _read_reply(question, answer)
        except LlmError as error:
            waits = error.status in _FOR_NOW and error.code != "not_ready"
            raise TextFailedError(str(error), max(1.0, error.retry_after_s) if waits else 0.0) from None

    async def check(self, llm: str) -> str:
        """Let every engine of a language model complete a token: what is wrong if none does, "" = one did."""
        return await self._models.check_model(llm)


def _encode_request(question: TextQuestion) -> bytes:
    return msgspec.json.encode(
        {
            "model": question.llm,
            "messages": question.messages,
            "max_tokens": question.max_tokens,
            "temperature": question.temperature,
        }
    )


def _read_reply(question: TextQuestion, answer: LlmAnswer) -> TextReply:
    """Read the text and its usage. TextFailedError if the answer holds no text."""
    try:
        found = _decoder.decode(answer.body)
        usage = read_whole(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UpstreamBrokenError, ReplicaFailedError):
        raise TextFailedError("the engine's answer is no chat completion") from None
    choice = found.choices[0] if found.choices else None
    if choice is None or not (choice.message.content or "").strip():
        raise TextFailedError("the engine's answer holds no text")
    text, cut = choice.message.content or "", choice.finish_reason == _CUT
    if usage is None:
        prompt = sum(len(each.content.encode()) for each in question.messages)
        counted = (round(prompt / BYTES_PER_TOKEN) + 1, round(len(text.encode()) / BYTES_PER_TOKEN) + 1)
        return TextReply(text, TextUsage(question.llm, *counted, cut=cut, estimated=True))
    return TextReply(text, TextUsage(question.llm, usage.prompt_tokens, usage.generated, usage.cached, cut=cut))
