"""What operators see of language models: traces, metrics, the list of replicas, readiness."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from cloud_hub.llm.echo import EchoFault
from cloud_hub.llm.telemetry import LlmOutcome, create_spans, find_outcome
from tests.cloud_hub.doubles.language_site import ASK, LanguageSite, language_site
from wire.process.tracing import Span

TRACE = "0123456789abcdef0123456789abcdef"
TRACED = {"traceparent": f"00-{TRACE}-0123456789abcdef-01"}


async def samples(site: LanguageSite) -> dict[tuple[str, ...], float]:
    _, text = await site.api.ask("GET", "/metrics")
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(each.name, *_sort_labels(each.labels)): each.value for each in found if "_llm_" in each.name}


def _sort_labels(labels: dict[str, str]) -> list[str]:
    return [labels[name] for name in ("model", "replica", "kind", "outcome", "le") if name in labels]


async def test_the_trace_of_a_streamed_answer_shows_queue_prefill_and_decode(tmp_path):
    spans: list[Span] = []
    async with language_site(tmp_path, spans=spans.extend, token_s=0.05) as site:
        body = {**ASK, "stream": True, "max_tokens": 5}
        async with site.api.client.post(site.url + "/chat/completions", json=body, headers=TRACED) as response:
            await response.read()
        async with asyncio.timeout(60):
            while len(spans) < 4:
                await asyncio.sleep(0.005)
    found = {span.name: span for span in spans}
    whole = found.pop("skerry.http")
    assert (whole.trace, whole.parent) == (TRACE, "0123456789abcdef")
    assert set(found) == {"skerry.queue", "skerry.prefill", "skerry.decode"}
    assert {(span.trace, span.parent) for span in found.values()} == {(TRACE, whole.id)}
    queue, prefill, decode = (found[f"skerry.{name}"] for name in ("queue", "prefill", "decode"))
    assert whole.start_s <= queue.start_s <= queue.end_s == prefill.start_s
    assert prefill.end_s == decode.start_s <= decode.end_s <= whole.end_s
    assert decode.end_s > decode.start_s
    assert decode.attributes["gen_ai.usage.output_tokens"] == 5


async def test_a_request_without_a_traceparent_makes_no_span_and_a_whole_answer_one_of_computing(tmp_path):
    spans: list[Span] = []
    async with language_site(tmp_path, spans=spans.extend) as site:
        await site.stream()
        assert not spans
        assert create_spans(site.records[0]) == []
        await site.api.ask("POST", "/v1/chat/completions", json=ASK, headers=TRACED)
        assert [span.name for span in spans] == ["skerry.queue", "skerry.compute", "skerry.http"]


async def test_every_outcome_is_counted_by_model_and_every_answer_by_replica(tmp_path):
    async with language_site(tmp_path) as site:
        (engine,) = site.engines
        await site.stream(max_tokens=3)
        for fault in (EchoFault.DIES_LATER, EchoFault.REFUSES, EchoFault.FAILS):
            engine.fault = fault
            await site.stream(max_tokens=3)
        await site.ask(max_tokens=10**6)
        found = await samples(site)
        outcomes = {key[2]: value for key, value in found.items() if key[0] == "skerry_hub_llm_requests_total"}
        assert outcomes == {"answered": 1, "broken": 1, "invalid": 1, "failed": 1, "refused": 1, "hung_up": 0}
        replica = ("echo", engine.url)
        assert found["skerry_hub_llm_replica_requests_total", *replica, "answered"] == 1
        assert found["skerry_hub_llm_replica_requests_total", *replica, "failed"] == 2
        assert found["skerry_hub_llm_replica_ready", *replica] == 1
        assert found["skerry_hub_llm_tokens_total", "echo", "output"] == engine.generated_tokens == 5
        assert find_outcome(site.records[1]) is LlmOutcome.BROKEN


async def test_replicas_are_listed_with_their_state_to_keys_of_the_whole_hub_alone(tmp_path):
    async with language_site(tmp_path, engines=2) as site:
        site.engines[1].fault = EchoFault.NOT_READY
        await site.ready(1)
        status, told = await site.api.ask("GET", "/v1/admin/language-models", headers=site.api.admin)
        assert status == 200
        (model,) = told["models"]
        assert [(each["ready"], each["why"]) for each in model["replicas"]] == [
            (True, ""),
            (False, "status 503 to the completion of one token"),
        ]
        assert (await site.api.ask("GET", "/v1/admin/language-models"))[0] == 401


async def test_a_hub_of_language_models_alone_is_ready_while_one_of_them_is(tmp_path):
    async with language_site(tmp_path) as site:
        site.api.hub.engines.clear()
        assert await site.api.ask("GET", "/readyz") == (200, {"ready": True, "reason": ""})
        site.engines[0].fault = EchoFault.NOT_READY
        await site.ready(0)
        status, told = await site.api.ask("GET", "/readyz")
        assert (status, told["reason"]) == (503, "no language model has an engine that is ready")
