"""Output to a webhook, against a real server on loopback."""

import base64
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp.web
import pytest

from edge_agent.outputs import delivery as delivery_module
from edge_agent.outputs.webhook import WebhookOutput, decode_secret
from tests.edge_agent.doubles.outputs_bench import UNSURE, BenchAgent, delivering, section, until


class Hook:
    """A web server that keeps what is posted; `replies`: the next statuses, then 204."""

    def __init__(self) -> None:
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.replies: list[tuple[int, dict[str, str]]] = []
        self.url = ""

    async def take(self, request: aiohttp.web.Request) -> aiohttp.web.Response:
        self.posts.append((dict(request.headers), await request.read()))
        status, headers = self.replies.pop(0) if self.replies else (204, {})
        return aiohttp.web.Response(status=status, headers=headers)


@contextlib.asynccontextmanager
async def hooked() -> AsyncIterator[Hook]:
    hook = Hook()
    app = aiohttp.web.Application()
    app.router.add_post("/hook", hook.take)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    hook.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield hook
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def posting(agent: BenchAgent, hook: Hook, state: Path, **keys: Any) -> AsyncIterator[Any]:
    given = {"kind": "webhook", "url": hook.url, **keys}
    async with delivering(agent, WebhookOutput(section(**given)), state, **given) as output:
        yield output


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(delivery_module, "_RETRY_BASE_S", 0.001)


async def test_each_record_is_posted_signed_and_with_its_token(tmp_path: Path):
    secret, token = tmp_path / "secret", tmp_path / "token"
    secret.write_text("whsec_" + base64.b64encode(b"k" * 24).decode() + "\n")
    token.write_text("t0ken\n")
    secret.chmod(0o600)
    token.chmod(0o600)
    agent = BenchAgent()
    async with hooked() as hook, posting(agent, hook, tmp_path, secret_file=str(secret), token_file=str(token)):
        answer = await agent.answer(UNSURE)
        await agent.verdict(answer.id, 1)
        await until(lambda: len(hook.posts) == 2)
    (headers, body), (_, correction) = hook.posts
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(b"k" * 24, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["Authorization"] == "Bearer t0ken"
    assert [json.loads(each)["kind"] for each in (body, correction)] == ["answer", "correction"]


async def test_several_records_are_one_list_where_that_is_wanted(tmp_path: Path):
    agent = BenchAgent()
    async with hooked() as hook, posting(agent, hook, tmp_path, batch=50):
        for _ in range(20):
            await agent.answer()
        await until(lambda: sum(len(json.loads(body)) for _, body in hook.posts) == 20)
    assert len(hook.posts) < 20


async def test_a_server_that_is_broken_busy_or_not_set_up_gets_it_again(tmp_path: Path):
    agent = BenchAgent()
    async with hooked() as hook, posting(agent, hook, tmp_path, attempts=3) as output:
        hook.replies = [(401, {}), (404, {}), (403, {}), (401, {}), (500, {}), (429, {"Retry-After": "0"})]
        await agent.answer()
        await until(lambda: output.counts["sent"] == 1)
        assert len(hook.posts) == 7


async def test_a_record_that_is_refused_for_good_is_counted_and_the_next_one_is_sent(tmp_path: Path):
    agent = BenchAgent()
    async with hooked() as hook, posting(agent, hook, tmp_path) as output:
        hook.replies = [(422, {}), (302, {"Location": hook.url})]
        for _ in range(3):
            await agent.answer()
        await until(lambda: output.counts["sent"] == 1)
        assert (len(hook.posts), dict(output.dropped)) == (3, {"refused": 2})


async def test_a_server_that_is_away_is_waited_for(tmp_path: Path):
    agent = BenchAgent()
    async with hooked() as hook:
        gone = hook.url
    agent_hook = Hook()
    agent_hook.url = gone
    async with posting(agent, agent_hook, tmp_path) as output:
        await agent.answer()
        await until(lambda: output.counts["retries"] > 2)
        assert output.status_fields()["state"] == "away"
        assert not output.dropped


async def test_a_token_that_others_may_read_is_not_sent(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("t0ken")
    token.chmod(0o644)
    agent = BenchAgent()
    async with hooked() as hook, posting(agent, hook, tmp_path, token_file=str(token)) as output:
        await agent.answer()
        await until(lambda: "can be read by others" in output.error)
        assert hook.posts == []


@pytest.mark.parametrize(("text", "key"), [(b"plain", b"plain"), (b"whsec_", b""), (b"whsec_*", b"whsec_*")])
def test_a_secret_is_base64_or_as_it_is(text, key):
    assert decode_secret(text) == key
