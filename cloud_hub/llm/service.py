"""All language models of the hub, as the web API uses them: found by name and tenant, listed, asked, run."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable

from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.model import LanguageModel, LlmCaller, LlmRecord
from cloud_hub.llm.relay import LlmAnswer
from cloud_hub.llm.requests import LlmOperation, parse_request
from cloud_hub.llm.settings import LlmSettings
from cloud_hub.llm.telemetry import LlmMeter
from wire.process.logging import JsonLog

RecordSink = Callable[[LlmRecord], None]


class LanguageModels:
    """The hub's language models. `keys`: bearer tokens of their engines, by model; `sinks` take every record.

    `meters`: what each model did.
    """

    def __init__(
        self,
        settings: Iterable[LlmSettings] = (),
        keys: dict[str, str] | None = None,
        sinks: Iterable[RecordSink] = (),
        log: JsonLog | None = None,
    ) -> None:
        self._sinks = tuple(sinks)
        self._counts: Counter[str] = Counter()
        self._open = 0
        found = [
            LanguageModel(each, (keys or {}).get(each.name, ""), self._on_ended, log or JsonLog()) for each in settings
        ]
        self._models = {model.settings.name: model for model in found}
        self.meters = {name: LlmMeter() for name in self._models}

    @property
    def max_body_bytes(self) -> int:
        """Longest request body that any model takes."""
        return max((model.settings.max_body_bytes for model in self._models.values()), default=16 * 1024)

    @property
    def open_requests(self) -> int:
        """Requests that wait or are being answered."""
        return self._open

    @property
    def oldest_begun_at(self) -> float:
        """When the turn came of the oldest request that is being answered, seconds since 1970; inf = there is none."""
        return min((model.oldest_begun_at for model in self._models.values()), default=math.inf)

    async def run(self) -> None:
        """Run all models until cancelled."""
        async with asyncio.TaskGroup() as group:
            for model in self._models.values():
                group.create_task(model.run(), name=f"llm-{model.settings.name}")

    async def check_model(self, name: str) -> str:
        """Let a model complete a token now: what is wrong, "" = nothing."""
        model = self._models.get(name)
        return await model.check_now() if model else f"this hub has no language model {name}"

    def add_sink(self, sink: RecordSink) -> None:
        """Give every record to `sink` too."""
        self._sinks = (*self._sinks, sink)

    def drain(self) -> None:
        """Refuse new requests from now on."""
        for model in self._models.values():
            model.queue.admission.drain()

    def divide_rates(self, hubs: int) -> None:
        """Let each tenant have its rates at so many hubs together: here it has its share of them."""
        for model in self._models.values():
            model.queue.divide_rates(hubs)

    def list_models(self, tenant: str) -> list[LanguageModel]:
        """Return the models that a tenant may use."""
        return [model for model in self._models.values() if model.is_visible(tenant)]

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """All models."""
        return tuple(self._models.values())

    def status(self) -> dict[str, dict[str, int]]:
        """Return, by model, its replicas, those that are ready, and the requests that wait and are being answered."""
        return {
            name: {
                "replicas": len(model.replicas),
                "ready": sum(replica.ready for replica in model.replicas),
                "waiting": model.queue.waiting,
                "running": sum(replica.in_flight for replica in model.replicas),
            }
            for name, model in self._models.items()
        }

    def counters(self) -> dict[str, int]:
        """Return monotonic counts by dotted name."""
        failovers = sum(model.counts["failovers"] for model in self._models.values())
        return {**self._counts, "llm.failovers": failovers} if self._models else {}

    @contextlib.asynccontextmanager
    async def answer(self, body: bytes, operation: LlmOperation, caller: LlmCaller) -> AsyncIterator[LlmAnswer]:
        """Read a request and yield its answer once it has begun. LlmError if it is refused or fails."""
        self._open += 1
        meter = LlmMeter()  # of a request that names no model of ours
        try:
            request = parse_request(body, operation)
            model = self._find_model(request.model, caller.tenant, len(body))
            meter = self.meters[request.model]
            async with model.answer(request, len(body), caller) as answer:
                yield answer
        except LlmError as error:
            self._counts[f"llm.refused.{error.code or error.status}"] += 1
            meter.on_refused(error.code)
            raise
        finally:
            self._open -= 1

    def _find_model(self, name: str, tenant: str, body_bytes: int) -> LanguageModel:
        """Return a model. LlmError: 404 if this tenant sees none of this name, 413 if the body is too long."""
        model = self._models.get(name)
        if model is None or not model.is_visible(tenant):
            raise LlmError(404, "this hub serves no such language model", code="model_not_found", param="model")
        if body_bytes > model.settings.max_body_bytes:
            raise LlmError(413, f"a body of more than {model.settings.max_body_bytes} bytes", code="too_large")
        return model

    def _on_ended(self, record: LlmRecord) -> None:
        ended = "llm.answered" if record.complete else "llm.ended_early"
        self._counts["llm.refused_by_engine" if record.status != 200 else ended] += 1
        self._counts["llm.usage_estimated"] += record.estimated
        self.meters[record.model].on_ended(record)
        for sink in self._sinks:
            sink(record)
