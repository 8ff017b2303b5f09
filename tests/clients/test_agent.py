"""Asking a device through the client, blocking and on asyncio: one story each, told of both."""

import asyncio
import inspect

import msgspec
import numpy as np
import pytest

import skerry_client
from edge_agent.api.service import InferLimits
from skerry_client import AnswerKind, AnswerSource, AskMode
from skerry_client.agent import AgentOperations
from skerry_client.answers import AnswerOperations
from tests.clients.calls import KINDS, asking, call, close, take
from tests.edge_agent.api.test_regressor import HalfRunner
from tests.edge_agent.doubles.api_double import MemoryAgent
from wire.http.access import ServerAccess, load_token

UNSURE = [0.4, 0.3, 0.3]
SURE = [0.1, 0.9, 0.0]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


async def test_an_answer_says_what_where_why_and_by_which_model(kind):
    memory = MemoryAgent()
    async with asking(kind, memory) as agent:
        answer = await call(agent.ask, np.array(SURE, np.float32), data_class="open", subject="visitor 12")
    assert (answer.label, answer.source, answer.reason) == (1, AnswerSource.LOCAL, "confident")
    assert (answer.model, answer.model_version, answer.kind) == ("echo", "7", AnswerKind.ANSWER)
    assert answer.scores == pytest.approx((0.1, 0.9, 0.0))
    assert not answer.may_be_corrected
    assert (memory.samples[0].data_class, memory.samples[0].subject) == ("open", "visitor 12")


async def test_the_hubs_answer_is_waited_for_where_the_caller_wishes(kind):
    memory = MemoryAgent()
    async with asking(kind, memory) as agent:
        waiting = asyncio.create_task(call(agent.ask, UNSURE, wait_s=30))
        while not memory.records:
            await asyncio.sleep(0.01)
        await memory.verdict(memory.records[0].id, 2)
        answer = await waiting
        assert (answer.kind, answer.label, answer.source) == (AnswerKind.CORRECTION, 2, AnswerSource.HUB)
        now = await call(agent.ask, UNSURE, mode=AskMode.NOW, wait_s=30)
        assert (now.kind, now.may_be_corrected) == (AnswerKind.ANSWER, True)


async def test_the_devices_answer_stands_where_the_question_ends_without_a_verdict(kind):
    memory = MemoryAgent()
    async with asking(kind, memory) as agent:
        answer = await call(agent.ask, UNSURE)
        await memory.refuse(answer.answer_id)
        assert await call(agent.answers.correction, answer, wait_s=30) is None
        assert (await call(agent.answers.get, answer, wait_s=30)).label == answer.label


async def test_who_asks_for_a_sure_answer_gets_one_or_an_error_that_holds_the_unsure_one(kind):
    memory = MemoryAgent()
    async with asking(kind, memory) as agent:
        assert (await call(agent.ask, SURE, mode="sure")).label == 1
        with pytest.raises(skerry_client.UnsureError, match="may still follow") as refused:
            await call(agent.ask, UNSURE, mode="sure", wait_s=0.05)
        assert refused.value.answer.label == 0
        with pytest.raises(ValueError, match="certain"):
            await call(agent.ask, SURE, mode="certain")


async def test_a_batch_is_one_request_and_keeps_its_order(kind):
    memory = MemoryAgent()
    samples = [np.eye(3, dtype=np.float32)[at % 3] for at in range(7)]
    async with asking(kind, memory, limits=InferLimits(max_batch=7)) as agent:
        answers = await call(agent.ask_batch, samples)
        assert [answer.label for answer in answers] == [0, 1, 2, 0, 1, 2, 0]
        assert len({answer.answer_id for answer in answers}) == 7
        assert await call(agent.ask_batch, []) == []


async def test_a_batch_larger_than_a_request_is_several(kind, monkeypatch):
    monkeypatch.setattr("skerry_client.agent.MAX_BATCH", 3)
    async with asking(kind, MemoryAgent(), limits=InferLimits(max_batch=3)) as agent:
        answers = await call(agent.ask_batch, [SURE] * 8)
    assert [answer.label for answer in answers] == [1] * 8


async def test_corrections_come_as_they_are_made_and_begin_behind_an_answer(kind):
    memory = MemoryAgent()
    async with asking(kind, memory) as agent:
        first, second = [await call(agent.ask, UNSURE) for _ in range(2)]
        await memory.verdict(first.answer_id, 1)
        iterator = agent.answers.corrections(after=first)
        [correction] = await take_and_keep(1, iterator)
        assert (correction.answer_id, correction.label) == (first.answer_id, 1)
        await memory.verdict(second.answer_id, 2)
        [later] = await take_and_keep(1, iterator)
        assert (later.answer_id, later.kind) == (second.answer_id, AnswerKind.CORRECTION)
        await close(iterator)
        again = await take(1, agent.answers.corrections(after=correction))
        assert [each.event for each in again] == [later.event]


async def take_and_keep(count, iterator):
    found: list[skerry_client.Answer] = []
    while len(found) < count:
        found.append(await call(next, iterator) if inspect.isgenerator(iterator) else await anext(iterator))
    return found


async def test_events_are_answers_and_corrections(kind):
    memory = MemoryAgent()
    async with asking(kind, memory) as agent:
        answer = await call(agent.ask, UNSURE)
        await memory.verdict(answer.answer_id, 1)
        events = await take(2, agent.answers.events(after=0))
    assert [event.kind for event in events] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]


async def test_why_feedback_status_and_readiness(kind):
    memory = MemoryAgent()
    async with asking(kind, memory) as agent:
        answer = await call(agent.ask, SURE)
        assert (await call(agent.answers.why, answer)).answer_id == answer.answer_id
        await call(agent.answers.feedback, answer.answer_id, "2")
        assert memory.truths == {answer.answer_id: 2}
        with pytest.raises(skerry_client.BadRequestError, match="no label or value of the model"):
            await call(agent.answers.feedback, answer, 99)
        assert (await call(agent.status))["mode"] == "answer_now"
        assert await call(agent.ready)
        memory.mode = "no model"
        assert not await call(agent.ready)
        with pytest.raises(skerry_client.NotFoundError):
            await call(agent.answers.why, "f" * 32)


async def test_a_device_without_a_model_or_disabled_says_so(kind):
    memory = MemoryAgent()
    async with asking(kind, memory) as agent:
        memory.mode = "no model"
        with pytest.raises(skerry_client.ServiceUnavailableError, match="no_model"):
            await call(agent.ask, SURE)
        memory.mode = "answer_now"
        await call(agent.ask, SURE)
        memory.mode = "disabled"
        with pytest.raises(skerry_client.ServiceUnavailableError, match="disabled"):
            await call(agent.ask, SURE)


async def test_a_model_that_was_exchanged_is_asked_as_it_is_now(kind):
    memory = MemoryAgent()
    async with asking(kind, memory) as agent:
        await call(agent.ask, SURE)
        memory.runner.manifest = msgspec.structs.replace(memory.runner.manifest, name="other")
        assert (await call(agent.ask, SURE)).model == "other"


async def test_a_regressor_answers_with_a_value(kind):
    memory = MemoryAgent()
    memory.runner = HalfRunner()
    async with asking(kind, memory) as agent:
        answers = await call(agent.ask_batch, [[1, 2, 3], np.array([9, 9, 9])])
        assert [(answer.value, answer.label) for answer in answers] == [(3.0, -1), (13.5, -1)]
        with pytest.raises(skerry_client.SampleError):
            await call(agent.ask, [0.5, 0.5, 0.5])


async def test_a_sample_that_does_not_fit_is_refused_here_and_never_sent(kind):
    memory = MemoryAgent()
    async with asking(kind, memory) as agent:
        unfit = (
            [0.1, 0.9],
            "a text",
            np.zeros((2, 3)),
            b"abc",
            None,
            [[1, 2], [3]],
            [float("nan"), 0.5, 0.5],
            [0, 2, 0],
        )
        for sample in unfit:
            with pytest.raises(skerry_client.SampleError):
                await call(agent.ask, sample)
    assert memory.samples == []


async def test_a_protected_device_wants_its_token(kind, tmp_path):
    access = ServerAccess(token_file=str(tmp_path / "api.token"))
    token = load_token(access)
    async with asking(kind, MemoryAgent(), access=access) as agent:
        with pytest.raises(skerry_client.AuthenticationError, match="401"):
            await call(agent.ask, SURE)
        told = type(agent)(agent._transport._address.base, token_file=access.token_file)
        assert (await call(told.ask, SURE)).label == 1
        await call(told.close)
        assert token


@pytest.mark.parametrize("operations", [AgentOperations, AnswerOperations])
def test_each_call_has_its_signature_and_says_what_it_does(operations):
    agent = skerry_client.Agent("http://127.0.0.1:1")
    for name, value in vars(operations).items():
        if not name.startswith("_"):
            assert inspect.getdoc(value), name
            assert next(iter(inspect.signature(value).parameters)) == "self", name
            assert value.__name__ == name
            bound = getattr(agent if operations is AgentOperations else agent.answers, name)
            assert (bound.__name__, bound.__doc__) == (name, value.__doc__)
    assert "sample" in inspect.signature(agent.ask).parameters
    agent.close()
