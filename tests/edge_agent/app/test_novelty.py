"""A sample unlike what the model knows, through the agent: flagged, asked or rejected, and recorded so."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge_agent.api.explanation import explain_answer
from edge_agent.api.service import make_answer_json, make_parameters
from edge_agent.question.records import AnswerKind, AnswerSource
from models.runtime.runner import EchoRunner
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import SURE, TRUTH, AgentRig, HubDouble, policy, sample

NOVEL = np.array([0.95, 0.5], np.float32)  # confident, and its smallest score is above the threshold of novelty


def rig(folder: Path, novel: str, mode: str = "answer_now", hub: HubDouble | None = None) -> AgentRig:
    return AgentRig(folder, policy(novel=novel, mode=mode), hub, runner=EchoRunner(2, novel_above=0.2))


async def test_flag_answers_here_and_says_so_in_every_form(tmp_path: Path):
    async with rig(tmp_path, "flag") as told:
        record = await told.agent.infer(sample(NOVEL))
        assert (record.why, record.prediction.in_domain) == (DecisionReason.CONFIDENT, False)
        assert make_answer_json(record, told.agent.manifest)["in_domain"] is False
        usual = await told.agent.infer(sample(SURE))
        assert usual.prediction.in_domain is True
        assert make_parameters([record, usual])["in_domain"] == "false,true"
        story = await told.agent.explain(record.id)
        lines = {line.about: line.text for line in explain_answer(story)}
        assert lines["domain"] == "by the device's own measure the sample is unlike what its model knows"
        assert lines["left"] == "nothing left this device"
        assert not told.hub.questions


async def test_ask_asks_the_hub_whatever_the_confidence_and_the_ledger_shows_it(tmp_path: Path):
    async with rig(tmp_path, "ask") as told:
        record = await told.agent.infer(sample(NOVEL))
        assert (record.source, record.why) == (AnswerSource.LOCAL, DecisionReason.NOVEL)
        records = await told.agent.wait(record.id, 2)
        assert [each.kind for each in records] == [AnswerKind.ANSWER, AnswerKind.CORRECTION]
        assert [each.prediction.in_domain for each in records] == [False, None]  # this hub cannot tell
        story = await told.agent.explain(record.id)
        assert [entry["kind"] for entry in story["ledger"]] == ["question"]
        private = await told.agent.infer(sample(NOVEL, "private"))
        assert private.why is DecisionReason.DENIED_DATA_CLASS
        assert len(told.hub.questions) == 1


async def test_reject_answers_out_of_domain_and_nothing_leaves(tmp_path: Path):
    async with rig(tmp_path, "reject", "hub_first") as told:
        record = await told.agent.infer(sample(NOVEL))
        assert (record.source, record.why) == (AnswerSource.LOCAL, DecisionReason.OUT_OF_DOMAIN)
        assert not told.hub.questions


@pytest.mark.parametrize(("novel", "why"), [("reject", "out_of_domain"), ("flag", "verdict")])
async def test_a_hub_that_says_out_of_domain_rejects_for_the_pair(tmp_path: Path, novel: str, why: str):
    strange = HubDouble(prediction=msgspec.structs.replace(TRUTH, in_domain=False))
    async with rig(tmp_path, novel, "wait", strange) as told:
        record = await told.agent.infer(sample(np.array([0.5, 0.1], np.float32)))
        assert (record.source, record.why, record.prediction.in_domain) == (AnswerSource.HUB, why, False)
        (kept,) = await told.agent.wait(record.id, 1)
        assert kept.prediction.in_domain is False
