"""A device asks a language model of the hub in words: answered, redacted, billed, explained, erased, never lost."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.llm.echo import EchoUpstream
from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness, find_free_port
from tests import ROOT
from tests.live.doubles.fleet import CANARY, QUICK, judged, settle
from tests.live.doubles.texts import POLICY, make_bundle, tell

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
TEXT = f"pump 7 leaks, call Mrs Lovelace, {CANARY}@example.org or 0172 5550123"
REDACTED = f"pump 7 leaks, call {'*' * 12}, {'*' * 18} or {'*' * 12}"


@pytest.fixture(scope="module")
def triage(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("triage"), max_tokens=24)


def write_policy(folder: Path, mode: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(POLICY.format(mode=mode))
    return path


def language_model(*urls: str) -> list[dict[str, Any]]:
    price = {"input": 10.0, "output": 30.0}
    return [{"name": "chat", "model": "echo", "urls": [*urls], "ready_s": 0.2, "price": price}]


async def skerry(*words: str) -> str:
    pipe, command = asyncio.subprocess.PIPE, (sys.executable, str(ROOT / "skerry.py"), *words)
    child = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await child.communicate()
    assert child.returncode == 0, (out, err)
    return out.decode()


async def test_a_text_is_asked_redacted_answered_billed_explained_and_erased(
    stage: ProcessHarness, triage: Bundle, tmp_path: Path
):
    engine, document = EchoUpstream(), write_policy(tmp_path, "hub_first")
    llm = language_model(await engine.start())
    try:
        hub = await stage.start_hub(triage.path, {"costs": {"currency": "EUR"}}, policies=(document,), llm=llm)
        agent = await stage.add_agent("a", triage.path, document, QUICK)
        await stage.start_agent(agent)
        answer = await tell(stage, agent, TEXT, parameters={"subject": "Ada"})

        words = REDACTED.split()
        assert (answer["source"], answer["reason"]) == ("hub", "verdict")
        assert answer["text_output"] == [" ".join((words * 3)[:24])], "the engine says the prompt's words again"
        assert (answer["label_name"], answer["scores"]) == (["pump"], [0.0, 0.0, 0.0])
        (sent,) = [told for told in map(json.loads, engine.bodies) if "messages" in told]
        assert sent["messages"] == [{"role": "user", "content": REDACTED}]
        assert (sent["max_tokens"], sent["temperature"]) == (24, 0.0)
        await settle(stage)

        async with stage.session.get(f"{agent.url}/v1/answers/{answer['answer_id']}") as response:
            (record,) = (await response.json())["records"]
        usage = {"model": "chat", "prompt_tokens": len(words), "generated_tokens": 24}
        assert record["usage"] == {**usage, "cached_tokens": 0, "cut": False, "estimated": False}
        why = await skerry("why", str(answer["answer_id"]), "--dir", str(agent.folder))
        assert "by the language model chat" in why
        assert "text (P3, redact" in why

        bill = await stage.call_admin("GET", "/v1/costs?days=1")
        (line,) = bill["costs"]
        assert (line["tenant"], line["model"], line["region"]) == ("demo", "chat", "local")
        assert (line["amounts"]["tokens_in"], line["amounts"]["tokens_out"]) == (len(words), 24)
        assert line["amounts"]["requests"] == 1
        with closing(sqlite3.connect(f"file:{hub.database}?mode=ro", uri=True)) as db:
            assert db.execute("select length(verdict) between 600 and 1024 from effects").fetchall() == [(1,)], (
                "padded to a class"
            )

        done = json.loads(await skerry("erase", "Ada", "--dir", str(agent.folder), "--json"))
        assert (done["answers"], done["found"]) == (1, {"hub-1": 1})
        with closing(sqlite3.connect(f"file:{agent.database}?mode=ro", uri=True)) as db:
            assert db.execute("select text from answers").fetchall() == []
            assert db.execute("select fields from ledger where kind='question'").fetchone() is not None
    finally:
        await engine.stop()


async def hub_status(stage: ProcessHarness) -> dict[str, Any]:
    return await stage.call_admin("GET", "/v1/admin/status")


@contextmanager
def running_engine(port: int, folder: Path, token_s: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "cloud_hub.llm.echo", "--port", str(port), "--token-s", str(token_s)]
    with (folder / f"engine-{port}.log").open("ab") as log:
        engine = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield engine
        finally:
            engine.kill()
            engine.wait()


async def test_an_engine_killed_in_the_middle_loses_no_question_and_doubles_none(
    stage: ProcessHarness, triage: Bundle, tmp_path: Path
):
    port, document = find_free_port(), write_policy(tmp_path, "hub_first")
    await stage.start_hub(triage.path, policies=(document,), llm=language_model(f"http://127.0.0.1:{port}"))
    agent = await stage.add_agent("a", triage.path, document, QUICK)
    await stage.start_agent(agent)
    with running_engine(port, tmp_path, token_s=1.0) as engine:  # half a minute an answer: none is done when it dies
        asking = [asyncio.create_task(tell(stage, agent, f"line {n}: the pump leaks")) for n in range(12)]
        while (await hub_status(stage))["language_models"]["chat"]["running"] < len(asking):
            await asyncio.sleep(0.02)
        engine.kill()
        engine.wait()
    while not (await hub_status(stage))["engines_down"]:
        await asyncio.sleep(0.02)
    assert not any(task.done() for task in asking), "they wait for the engine"
    with running_engine(port, tmp_path):
        answers = await asyncio.gather(*asking)
        await settle(stage)
    assert Counter(answer["source"] for answer in answers) == {"hub": len(asking)}
    assert len({answer["answer_id"] for answer in answers}) == len(asking)
    report = judged(stage)
    assert (report.lost, report.doubled) == (0, 0), report
