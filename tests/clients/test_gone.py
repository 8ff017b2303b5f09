"""A device that is gone, comes back, or is something else: one clear error, and iterators that go on."""

import asyncio
import gc
import json
import re

import pytest
from aiohttp import web

import skerry_client
from edge_agent.api.app import ApiServer, build_app
from edge_agent.system.settings import ApiAddress
from skerry_client.addresses import find_agent, find_hub
from skerry_client.exchange import commands, events
from tests.clients.calls import AGENTS, HUBS, KINDS, call, close, take
from tests.clients.test_agent import SURE, UNSURE, take_and_keep
from tests.edge_agent.doubles.api_double import MemoryAgent
from tests.examples import mark_further
from wire.http.access import ServerAccess


@pytest.fixture(autouse=True)
def quick_retries(set_times):
    set_times(commands, FIRST_PAUSE_S=0.01)


@pytest.fixture(params=mark_further(KINDS, ["blocking"]))
def kind(request):
    return request.param


async def serve(memory: MemoryAgent, access: ServerAccess) -> tuple[ApiServer, str]:
    server = ApiServer(build_app(memory, access), access)
    return server, await server.start()


async def test_a_device_that_is_gone_is_named_with_what_to_do(kind):
    server, url = await serve(MemoryAgent(), ServerAccess())
    agent = AGENTS[kind](url)
    assert (await call(agent.ask, SURE)).label == 1
    await server.stop()
    with pytest.raises(skerry_client.APIConnectionError, match=r"nobody answers .*is the agent running there") as gone:
        await call(agent.ask, SURE)
    assert url in str(gone.value)
    with pytest.raises(skerry_client.APIConnectionError):
        await take(1, agent.answers.corrections(patience_s=0.0))
    await call(agent.close)


async def test_corrections_go_on_after_the_device_was_restarted_and_none_is_missed_or_doubled(kind):
    memory = MemoryAgent()
    server, url = await serve(memory, ServerAccess())
    agent = AGENTS[kind](url)
    answers = [await call(agent.ask, UNSURE) for _ in range(3)]
    corrections = agent.answers.corrections(after=answers[0])
    await memory.verdict(answers[0].answer_id, 1)
    [first] = await take_and_keep(1, corrections)
    await server.stop()
    await memory.verdict(answers[1].answer_id, 2)  # while nobody listens
    again, _ = await serve(memory, ServerAccess(port=int(url.rpartition(":")[2])))
    await memory.verdict(answers[2].answer_id, 0)
    rest = await take_and_keep(2, corrections)
    assert [each.answer_id for each in (first, *rest)] == [answer.answer_id for answer in answers]
    await close(corrections)
    await call(agent.close)
    await again.stop()


# httpcore2's blocking connection leaves a Unix socket that could not connect to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_device_behind_a_unix_socket_is_asked_like_any_other(kind, tmp_path):
    access = ServerAccess(unix=str(tmp_path / "agent.sock"))
    server, url = await serve(MemoryAgent(), access)
    agent = AGENTS[kind](url)
    assert (await call(agent.ask, SURE)).label == 1
    await call(agent.close)
    await server.stop()
    with pytest.raises(skerry_client.APIConnectionError, match="unix:"):
        await call(AGENTS[kind](url).status)
    gc.collect()  # here, where the warning is ignored, and not in a later test


async def test_a_state_folder_names_address_and_token_by_itself(kind, tmp_path):
    access = ServerAccess(token_file=str(tmp_path / "api.token"))
    server, url = await serve(MemoryAgent(), access)
    ApiAddress(url, access.token_file).save(tmp_path)
    agent = AGENTS[kind](tmp_path)
    assert (await call(agent.ask, SURE)).label == 1
    await call(agent.close)
    await server.stop()


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("ftp://somewhere", "no agent runs with this state folder"),
        ("http://", "is no address of an agent"),
        ("http://127.0.0.1:99999", "is no address"),
        ("", "'' is no address of an agent"),  # a variable that was not set is not the agent of this machine
    ],
)
def test_what_is_no_address_is_refused_at_once(where, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SKERRY_AGENT", "http://127.0.0.1:1")  # says where only if nobody else does
    for agent in AGENTS.values():
        with pytest.raises(skerry_client.SkerryError, match=line):
            agent(where)


@pytest.mark.parametrize("where", ["", "somewhere", "ftp://somewhere", "http://", "http://[::1"])
def test_what_is_no_address_of_a_hub_is_refused_at_once(where, monkeypatch):
    monkeypatch.setenv("SKERRY_HUB", "http://127.0.0.1:1")
    for hub in HUBS.values():
        with pytest.raises(skerry_client.SkerryError, match="is no address of a hub"):
            hub(where, token="t")


def test_nobody_says_where_and_the_environment_does(monkeypatch, tmp_path):
    (tmp_path / "admin.token").write_text("key-of-this-hub\n")
    for name, text in {
        "AGENT": "http://127.0.0.1:1",
        "HUB": "http://127.0.0.1:2",
        "KEY": tmp_path / "admin.token",
    }.items():
        monkeypatch.setenv(f"SKERRY_{name}", str(text))
    assert find_agent(None).base == "http://127.0.0.1:1"
    hub = find_hub(None)
    assert (hub.base, hub.token) == ("http://127.0.0.1:2", "key-of-this-hub")
    assert find_hub("http://127.0.0.1:2").token == ""  # the key is of the hub that the environment names


def test_a_broken_state_folder_and_missing_files_are_named(tmp_path):
    for content in (b"", b"[]", b"\xff"):
        (tmp_path / "api.json").write_bytes(content)
        with pytest.raises(skerry_client.SkerryError, match=r"api\.json"):
            skerry_client.Agent(tmp_path)
    for options in ({"token_file": tmp_path / "none"}, {"ca_file": tmp_path / "none"}):
        with pytest.raises(skerry_client.SkerryError, match="none"):
            skerry_client.Agent("https://127.0.0.1:1", **options)


RECORD = {"answer_id": "a" * 32, "kind": "answer", "source": "local", "reason": "unsure"}
METADATA = {"name": "m", "versions": ["1"], "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]}
ODD = {
    "a page": ("/v1/status", "<html>", "text/html", "the reply is no JSON"),
    "a list": ("/v1/status", [], "application/json", "no JSON object"),
    "no inputs": ("/v2/models/m", {**METADATA, "inputs": []}, "application/json", "0 inputs"),
    "inputs of words": ("/v2/models/m", {**METADATA, "inputs": ["x"]}, "application/json", "'x' is not an object"),
    "no outputs": ("/v2/models/m/infer", {"outputs": []}, "application/json", "the reply has no answer"),
    "another's infer": (
        "/v2/models/m/infer", {"outputs": [{"name": "y", "data": [1]}]}, "application/json", "the reply has no answer",
    ),
    "no parameters": (
        "/v2/models/m/infer",
        {"outputs": [{"name": "confidence", "data": [1]}, {"name": "label", "data": [1]}]},
        "application/json",
        "no parameters",
    ),
    "two answers": (
        "/v2/models/m/infer",
        {
            "model_name": "m",
            "outputs": [{"name": name, "data": [1, 1]} for name in ("confidence", "label")],
            "parameters": {**{key: f"{value},{value}" for key, value in RECORD.items()}, "model_version": "1,1"},
        },
        "application/json",
        "2 answers for 1 samples",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
async def test_a_server_with_another_schema_is_said_to_have_one(kind, name):
    path, body, content_type, line = ODD[name]
    replies = {"/v1/status": {"model": "m@1"}, "/v2/models/m": METADATA, path: body}

    async def answer(request: web.Request) -> web.Response:
        found = replies[request.path]
        text = found if isinstance(found, str) else json.dumps(found)
        return web.Response(text=text, content_type=content_type if request.path == path else "application/json")

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    agent = AGENTS[kind](f"http://127.0.0.1:{runner.addresses[0][1]}")
    with pytest.raises(skerry_client.APIResponseValidationError, match=line):
        await call(agent.ask, SURE)
    await call(agent.close)
    await runner.cleanup()


async def test_a_server_that_hangs_up_or_never_answers_is_an_error_in_time(kind):
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    for behave, timeout_s, error in (
        (hang_up, 60.0, skerry_client.APIConnectionError),
        (stay_silent, 0.2, skerry_client.APITimeoutError),
    ):
        server = await asyncio.start_server(behave, "127.0.0.1", 0)
        agent = AGENTS[kind](f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=timeout_s)
        with pytest.raises(error, match="no whole reply came"):
            await call(agent.status)
        await call(agent.close)
        server.close()


async def test_an_iterator_waits_for_a_device_that_is_away_as_long_as_its_patience(kind, set_times):
    set_times(events, FIRST_PAUSE_S=0.05)
    memory = MemoryAgent()
    server, url = await serve(memory, ServerAccess())
    agent = AGENTS[kind](url)
    answer = await call(agent.ask, UNSURE)
    await memory.verdict(answer.answer_id, 1)
    await server.stop()
    with pytest.raises(skerry_client.APIConnectionError):
        await take(1, agent.answers.corrections(after=answer, patience_s=0.0))
    waiting = asyncio.create_task(take(1, agent.answers.corrections(after=answer, patience_s=30.0)))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    again, _ = await serve(memory, ServerAccess(port=int(url.rpartition(":")[2])))
    [correction] = await waiting
    assert correction.answer_id == answer.answer_id
    await call(agent.close)
    await again.stop()


async def test_arguments_that_mean_nothing_are_refused_by_name_before_anything_is_sent(kind):
    agent = AGENTS[kind]("http://127.0.0.1:9")  # nobody is asked
    for refused, said in (
        (lambda: call(agent.ask, SURE, mode="fast"), "mode='fast': there are 'now', 'best', 'sure'"),
        (lambda: call(agent.ask, SURE, wait_s=-1), "wait_s=-1: a time of 0 seconds or more"),
        (lambda: call(agent.ask_batch, [SURE], wait_s=float("nan")), "wait_s=nan"),
        (lambda: call(agent.answers.get, "a", wait_s=-0.5), "wait_s=-0.5"),
        (lambda: take(1, agent.answers.corrections(patience_s=-1)), "patience_s=-1"),
    ):
        with pytest.raises(skerry_client.ArgumentError, match=re.escape(said)):
            await refused()
    await call(agent.close)
