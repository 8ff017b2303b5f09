"""Answers the questions of a text model by asking a language model, many at once, on the event loop.

Rule: a question that the language model takes no more of now waits here, as long as it is open: it was accepted. What
fails is reported as any engine's failure, so that the core tries it again, and checks the engine before it gives up.
Rule: the text of a device goes into its place of the template and nowhere else; one that holds marks by which engines
tell messages apart is not asked.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from cloud_hub.core.commands import LOCAL, BatchItem
from cloud_hub.engine.base import ENGINE_FAULTS, EngineHealth, EngineState
from cloud_hub.engine.text import TextEngine
from cloud_hub.engine.types import EngineSetup, ModelCard, WorkItem
from cloud_hub.engine.worker import BatchResult, ResultCallback
from models.bundle.manifest import TEXT_FIELD
from models.bundle.text_part import PromptMessage
from models.runtime.runner import SampleError
from models.runtime.text import decode_text
from policies.serving.fair_queue import extract_tenant
from wire.process.logging import describe_error
from wire.protocol.messages import Prediction, TextUsage

MAX_PAUSE_S = 10.0
# Of the chat templates of Llama, Mistral, Gemma, ChatML and their kin: in a text they could end its message.
_MARKS = re.compile(r"<\|[^|>]{0,64}\|>|\[/?INST\]|<</?SYS>>|</?s>|<(?:start|end)_of_turn>|<[｜|][^｜|>]{0,64}[｜|]>")
_WORD_END = re.compile(r"[^\W_]")


class TextQuestion(msgspec.Struct, frozen=True):
    """A filled prompt and its limits, and who asks. `web`: through the hub's web API, and billed by that."""

    llm: str
    messages: Sequence[PromptMessage]
    max_tokens: int
    temperature: float
    tenant: str
    flow: str
    trace: str = ""
    web: bool = False


class TextReply(msgspec.Struct, frozen=True):
    """What a language model wrote."""

    text: str
    usage: TextUsage


class TextFailedError(Exception):
    """A question that was not answered. `retry_after_s`: more than 0 = it is to be asked again after so long."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TextAsker(Protocol):
    """The hub's language models, as questions of devices use them."""

    async def ask(self, question: TextQuestion) -> TextReply:
        """Ask; raises TextFailedError."""
        ...

    async def check(self, llm: str) -> str:
        """Let a language model complete a token now: what is wrong, "" = it did."""
        ...


class NoLanguageModels:
    """The double of a hub without language models."""

    async def ask(self, question: TextQuestion) -> TextReply:
        """Raise TextFailedError."""
        raise TextFailedError(f"this hub has no language model {question.llm}")

    async def check(self, llm: str) -> str:
        """Say that there is none."""
        return f"this hub has no language model {llm}"


NO_LANGUAGE_MODELS = NoLanguageModels()


class TextWorker:
    """Asks the language model of one text model. Used on the event loop only."""

    rebuilds: int | None = None
    cost = (0.0, 0.0)  # unknown until answers have come

    def __init__(self, engine: TextEngine, asker: TextAsker) -> None:
        self._engine = engine
        self._asker = asker
        self._tasks: set[asyncio.Task[None]] = set()
        self._why = ""

    @property
    def card(self) -> ModelCard:
        """Card of the model."""
        return self._engine.card

    @property
    def setup(self) -> EngineSetup:
        """What it runs on: nothing of this machine."""
        return self._engine.setup

    @property
    def health(self) -> tuple[EngineHealth, ...]:
        """Result of the last check."""
        return (EngineHealth(EngineState.LOST if self._why else EngineState.READY, self._why),)

    async def warm_up(self) -> str:
        """Nothing to do: a language model that is not ready yet costs a question time, and no version its place."""
        return ""

    def submit_items(
        self, items: Sequence[BatchItem], callback: ResultCallback, is_waited_for: Callable[[BatchItem], bool]
    ) -> None:
        """Ask for the items, one after the other; `callback` is called with their answers, or with the failure.

        `is_waited_for`: whether an item is still open; one that was erased meanwhile is not asked again.
        """
        task = asyncio.create_task(self._answer_all(items, callback, is_waited_for), name=f"text-{self.card.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def probe(self) -> BatchResult:
        """Let the language model complete one token."""
        began = time.perf_counter()
        self._why = await self._asker.check(self._engine.template.llm)
        return BatchResult([], time.perf_counter() - began, self._why)

    async def close(self) -> None:
        """Stop asking: what was not answered is in the store."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._engine.stop()

    async def _answer_all(
        self, items: Sequence[BatchItem], callback: ResultCallback, is_waited_for: Callable[[BatchItem], bool]
    ) -> None:
        began = time.perf_counter()
        try:
            predictions = [await self._answer_item(item, is_waited_for) for item in items]
        except (TextFailedError, SampleError) as error:
            callback(BatchResult([], time.perf_counter() - began, str(error)))
            return
        except ENGINE_FAULTS as error:  # a defect of ours must not leave the question's slot taken
            callback(BatchResult([], time.perf_counter() - began, describe_error(error), defect=error))
            return
        callback(BatchResult(predictions, time.perf_counter() - began))

    async def _answer_item(self, item: BatchItem, is_waited_for: Callable[[BatchItem], bool]) -> Prediction:
        question = self._make_question(item, read_text(item.work))
        while True:
            try:
                reply = await self._asker.ask(question)
            except TextFailedError as error:
                if not error.retry_after_s or not is_waited_for(item):
                    raise
                await asyncio.sleep(min(error.retry_after_s, MAX_PAUSE_S))
            else:
                return self._make_prediction(reply)

    def _make_question(self, item: BatchItem, text: str) -> TextQuestion:
        template, web = self._engine.template, item.key.device == LOCAL
        return TextQuestion(
            llm=template.llm,
            messages=template.fill(text),
            max_tokens=template.max_tokens,
            temperature=template.temperature,
            tenant=item.tenant if web else extract_tenant(item.key.device),
            flow=item.flow if web else item.key.device,
            trace=item.trace,
            web=web,
        )

    def _make_prediction(self, reply: TextReply) -> Prediction:
        text, cut = cut_text(reply.text, self._engine.template.max_bytes)
        usage = msgspec.structs.replace(reply.usage, cut=reply.usage.cut or cut)
        return Prediction(find_label(text, self.card.labels), 1.0, (), self.card.name, None, text, usage)


def read_text(work: WorkItem) -> str:
    """Return the text of a work item. SampleError if it is none, or holds marks of chat templates."""
    text = decode_text(work.codes[TEXT_FIELD] if work.raw is None else work.raw)
    if _MARKS.search(text):
        raise SampleError("text: holds marks of a chat template")
    return text


def cut_text(text: str, max_bytes: int) -> tuple[str, bool]:
    """Cut a text to so many bytes of UTF-8, between two characters; and whether anything was cut."""
    raw = text.encode(errors="replace")
    if len(raw) <= max_bytes:
        return raw.decode(), False
    return raw[:max_bytes].decode(errors="ignore"), True


def find_label(text: str, labels: Sequence[str]) -> int:
    """Return the number of the longest label that a text begins with, whatever the case; -1 if it is none."""
    said = text.lstrip().casefold()
    found = [
        at
        for at, label in enumerate(labels)
        if said.startswith(label.casefold()) and not _WORD_END.match(said[len(label.casefold()) :])
    ]
    return max(found, key=lambda at: len(labels[at]), default=-1)
