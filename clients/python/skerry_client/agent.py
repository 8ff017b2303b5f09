"""A device's agent: ask it about samples, one or a batch, and read its status."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from skerry_client.addresses import find_agent
from skerry_client.answers import Answer, Answers, AsyncAnswers, WaitBudget, fetch_records, read_inference
from skerry_client.errors import (
    APIResponseValidationError,
    ArgumentError,
    NotFoundError,
    SampleError,
    ServiceUnavailableError,
    UnsureError,
)
from skerry_client.exchange.commands import Request, Steps, fetch_object, send
from skerry_client.exchange.operations import AsyncCalls, BlockingCalls, operation
from skerry_client.exchange.transports import AsyncTransport, BlockingTransport
from skerry_client.inference import ServedModel, build_inference, fetch_model
from skerry_client.samples import BYTES, ModelInput

TIMEOUT_S = 90.0  # a device's policy may have its callers wait for the hub
MAX_BATCH = 256  # the most samples, and about the most bytes, that an agent takes in one request as it is shipped
MAX_BATCH_BYTES = 3 << 20
_HEADER_LENGTH = "Inference-Header-Content-Length"


class AskMode(StrEnum):
    """What the caller of `ask` wants to have.

    `now`: the device's answer, at once. `best`: the hub's answer if the device asked it and it comes within `wait_s`,
    else the device's. `sure`: the same, and UnsureError where the device was unsure and no hub's answer came.
    Whether the hub is asked at all is the policy's choice, not the caller's.
    """

    NOW = "now"
    BEST = "best"
    SURE = "sure"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise ArgumentError(f"mode={value!r}: there are {', '.join(repr(str(each)) for each in cls)}")


class AgentOperations:
    """What an agent is asked, but for answers given before, which `answers` has."""

    _served: ServedModel | None = None

    @operation
    def ask(
        self,
        sample: object,
        *,
        mode: AskMode | str = AskMode.BEST,
        wait_s: float = 0.0,
        data_class: str | None = None,
        subject: str | None = None,
    ) -> Steps[Answer]:
        """Ask about one sample, and return its answer: the device's own, or the hub's where `mode` and `wait_s` say so.

        `sample`: a numpy array or torch tensor, a picture of Pillow or a picture's file as bytes, lists of numbers, raw
        bytes, or a text, as the model takes it. `data_class`: what the policy's rules call it; left out: the agent's.
        `subject`: whom it is about, kept and sent as a keyed hash only.

        SampleError if it does not fit the model, ArgumentError for a `mode` or `wait_s` that means nothing: nothing was
        sent. UnsureError: see `AskMode`; else APIStatusError, APIConnectionError.
        """
        wanted, budget = AskMode(mode), WaitBudget(wait_s)
        [answer] = yield from self._infer([sample], _parameters(data_class, subject))
        return (yield from _settle(answer, wanted, budget))

    @operation
    def ask_batch(
        self,
        samples: Sequence[object],
        *,
        mode: AskMode | str = AskMode.BEST,
        wait_s: float = 0.0,
        data_class: str | None = None,
        subject: str | None = None,
    ) -> Steps[list[Answer]]:
        """Ask about many samples in as few requests as the agent takes; their answers, in their order.

        `wait_s`: for all of them together. All else as in `ask`.
        """
        wanted, budget = AskMode(mode), WaitBudget(wait_s)
        told, answers = _parameters(data_class, subject), []
        served = yield from self._find_model()
        size = _batch_size(samples, served.input)
        for at in range(0, len(samples), size):
            answers += yield from self._infer(samples[at : at + size], told)
        for at, answer in enumerate(answers):
            answers[at] = yield from _settle(answer, wanted, budget)
        return answers

    @operation
    def model(self) -> Steps[ServedModel]:
        """Return the model that answers now, and what it takes. ServiceUnavailableError if there is none."""
        self._served = None
        return (yield from self._find_model())

    @operation
    def status(self) -> Steps[dict[str, Any]]:
        """Return the agent's status, as `skerry agent status --json` prints it."""
        return (yield from fetch_object(Request("GET", "/v1/status", safe=True)))

    @operation
    def ready(self) -> Steps[bool]:
        """Return whether a sample would be answered now."""
        try:
            yield from send(Request("GET", "/readyz", safe=True))
        except ServiceUnavailableError:
            return False
        return True

    def _infer(self, samples: Sequence[object], told: dict[str, str]) -> Steps[list[Answer]]:
        """Ask about samples that fit one request; once more if the device's model changed meanwhile."""
        known = self._served
        served = yield from self._find_model()
        try:
            return (yield from _request_inference(served, samples, told))
        except (NotFoundError, SampleError):
            if known is None:
                raise
            self._served = None
            now = yield from self._find_model()
            if now == known:
                raise
            return (yield from _request_inference(now, samples, told))

    def _find_model(self) -> Steps[ServedModel]:
        if self._served is None:
            self._served = yield from _fetch_served()
        return self._served


def _fetch_served() -> Steps[ServedModel]:
    """Fetch the model that the agent has now. ServiceUnavailableError without one."""
    status = yield from fetch_object(Request("GET", "/v1/status", safe=True))
    told = str(status.get("model") or "")
    return (yield from fetch_model(told.rpartition("@")[0] or told or "none"))


def _request_inference(served: ServedModel, samples: Sequence[object], told: dict[str, str]) -> Steps[list[Answer]]:
    request = build_inference(served, samples, told)
    answers = read_inference((yield from send(request)), request.where)
    if len(answers) != len(samples):
        raise APIResponseValidationError(f"{request.where}: {len(answers)} answers for {len(samples)} samples")
    return answers


def _settle(answer: Answer, mode: AskMode, budget: WaitBudget) -> Steps[Answer]:
    """Wait for the hub's answer as the caller wishes."""
    if mode is AskMode.NOW or not answer.may_be_corrected:
        sure = mode is not AskMode.SURE or answer.source == "hub" or answer.reason == "confident"
        if not sure:
            raise UnsureError(answer)
        return answer
    best = answer if budget.left_s <= 0 else (yield from fetch_records(answer.answer_id, budget))[-1]
    if mode is AskMode.SURE and best.may_be_corrected:
        raise UnsureError(answer)
    return best


def _parameters(data_class: str | None, subject: str | None) -> dict[str, str]:
    given = {"data_class": data_class, "subject": subject}
    return {key: value for key, value in given.items() if value is not None}


def _batch_size(samples: Sequence[object], spec: ModelInput) -> int:
    """How many samples go into one request."""
    texts = [sample for sample in samples if spec.datatype == BYTES and isinstance(sample, str | bytes)]
    longest = max(map(len, texts), default=1) * 4 if texts else spec.size
    return max(1, min(MAX_BATCH, MAX_BATCH_BYTES // max(1, longest)))


class Agent(AgentOperations, BlockingCalls):
    """A device's agent; each call blocks until its reply is there.

    `where`: its URL, `unix:PATH`, or the state folder of an agent on this machine, which names address, token and
    certificate by itself; left out: what `SKERRY_AGENT` says, else http://127.0.0.1:8090. `token` or `token_file`: from
    another machine; `ca_file`: PEM of the CA of its certificate. Calls may be made from several threads. SkerryError
    if `where` is no address, or no agent runs there.
    """

    def __init__(
        self,
        where: str | Path | None = None,
        *,
        token: str = "",
        token_file: str | Path = "",
        ca_file: str | Path = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(BlockingTransport(find_agent(where, token, token_file, ca_file), timeout_s))
        self.answers = Answers(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()


class AsyncAgent(AgentOperations, AsyncCalls):
    """A device's agent, on asyncio: the calls of `Agent` as coroutines, its iterators as asynchronous ones."""

    def __init__(
        self,
        where: str | Path | None = None,
        *,
        token: str = "",
        token_file: str | Path = "",
        ca_file: str | Path = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(AsyncTransport(find_agent(where, token, token_file, ca_file), timeout_s))
        self.answers = AsyncAnswers(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()
