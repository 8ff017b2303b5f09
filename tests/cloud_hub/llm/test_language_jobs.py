"""Jobs that name a language model are chats, completions and embeddings that wait for their turn."""

import json

import pytest

from cloud_hub.jobs.decisions import JobAnswer, JobOutcome, JobRefusal
from cloud_hub.jobs.states import Job
from cloud_hub.llm.echo import EchoFault
from cloud_hub.llm.job_computing import LanguageComputer
from tests.cloud_hub.doubles.language_site import language_site
from tests.cloud_hub.jobs.making import job
from wire.http.oip import OipError
from wire.protocol.messages import RefusalReason

CHAT = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 3}


class NoOthers:
    """A hub without any other model."""

    def check(self, _model: str, _body: bytes, _tenant: str) -> None:
        raise OipError(404, "this hub serves no such model or version")

    async def compute(self, _job: Job, _body: bytes, _timeout_s: float) -> JobOutcome:
        return JobRefusal(RefusalReason.MODEL_GONE)


async def test_a_job_is_computed_and_billed_to_its_tenant_and_its_faults_end_it(tmp_path):
    async with language_site(tmp_path) as site:
        computer = LanguageComputer(site.models, NoOthers())
        body = json.dumps(CHAT).encode()
        computer.check("echo", body, "acme")
        found = await computer.compute(job(model="echo"), body, 60.0)
        assert isinstance(found, JobAnswer)
        assert json.loads(found.output)["choices"][0]["message"]["content"] == "one two one"
        assert (site.records[0].caller.tenant, site.records[0].generated_tokens) == ("acme", 3)
        site.engines[0].fault = EchoFault.REFUSES
        refused = await computer.compute(job(model="echo"), body, 60.0)
        assert refused == JobRefusal(RefusalReason.SCHEMA, detail="the prompt is too long")
        site.engines[0].fault = EchoFault.FAILS
        failed = await computer.compute(job(model="echo"), body, 60.0)
        assert isinstance(failed, JobRefusal)
        assert failed.reason is RefusalReason.MODEL_GONE  # it is tried again


@pytest.mark.parametrize(
    ("request_body", "status"),
    [
        ({**CHAT, "stream": True}, 400),
        ({**CHAT, "model": "other"}, 400),
        ({"max_tokens": 3}, 400),
        ({**CHAT, "prompt": "x"}, 400),
        ({**CHAT, "n": "x"}, 400),
    ],
)
async def test_a_job_that_is_no_request_of_its_model_is_refused_at_once(tmp_path, request_body, status):
    async with language_site(tmp_path) as site:
        with pytest.raises(OipError) as refused:
            LanguageComputer(site.models, NoOthers()).check("echo", json.dumps(request_body).encode(), "acme")
        assert refused.value.status == status


async def test_a_model_of_another_tenant_looks_to_jobs_as_if_there_were_none(tmp_path):
    async with language_site(tmp_path, tenants=frozenset({"clinic"})) as site:
        computer, body = LanguageComputer(site.models, NoOthers()), json.dumps(CHAT).encode()
        with pytest.raises(OipError, match="no such model"):
            computer.check("echo", body, "acme")
        assert await computer.compute(job(model="echo"), body, 60.0) == JobRefusal(RefusalReason.MODEL_GONE)
