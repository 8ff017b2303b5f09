"""A subject is forgotten: on a running device, at its hub, with a tombstone that anybody can check."""

import asyncio
import contextlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness
from tests import ROOT
from tests.live.doubles.fleet import PATIENT_S, POLICY, QUICK, ask, samples, settle

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
SUBJECT = "CANARY-Ada Lovelace"


async def skerry(*words: str) -> dict[str, Any]:
    pipe, command = asyncio.subprocess.PIPE, (sys.executable, str(ROOT / "skerry.py"), *words)
    child = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await child.communicate()
    assert child.returncode == 0, (out, err)
    return dict(json.loads(out))


def rows(file: Path, query: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        return db.execute(query).fetchall()


def list_erasable(agent: Path, hub: Path, ids: set[str]) -> list[bytes]:
    """What rows about a subject hold on both sides, as bytes, but what stays: ids, keys, hashes, names of models."""
    answers = rows(agent, "select id, scores, trace, subject from answers")
    mine = [value for id_, *values in answers if id_ in ids for value in values]
    verdicts = [
        value for row in rows(hub, "select verdict, subject from effects order by seq limit 3") for value in row
    ]
    texts = [value.encode() if isinstance(value, str) else bytes(value) for value in (*mine, *verdicts) if value]
    # the numbers of erased questions stay under the subject's hash on the device, for ten days
    return [text for text in texts if len(text) >= 12 and text != answers[0][3]]


def find_bytes(folder: Path, texts: list[bytes]) -> dict[str, int]:
    """How many of these texts each file under a folder holds; files that hold none are left out."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = {name: sum(text in data for text in texts) for name, data in files.items()}
    return {name: count for name, count in found.items() if count}


async def test_a_hub_that_never_knew_the_subject_erases_what_the_device_names(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    """The policy names no subject field: its hash stays on the device, which knows the question's number."""
    document = tmp_path / "policy.toml"
    document.write_text(POLICY.format(mode="hub_first", budget_s=PATIENT_S))
    hub = await stage.start_hub(bundle.path, policies=(document,))
    agent = await stage.add_agent("a", bundle.path, document, QUICK)
    await stage.start_agent(agent)
    people = (SUBJECT, "somebody else")
    asked = [
        await ask(stage, agent, bundle, x, parameters={"subject": who})
        for x, who in zip(samples(2), people, strict=True)
    ]
    assert {answer["source"] for answer in asked} == {"hub"}
    await settle(stage)
    assert rows(hub.database, "select subject is null, verdict is null from effects order by seq") == [(1, 0), (1, 0)]

    done = await skerry("erase", SUBJECT, "--dir", str(agent.folder), "--json")
    assert done == {
        "answers": 1,
        "questions": 1,
        "hubs": {"hub-1": 1},
        "found": {"hub-1": 1},
        "left": [],
        "readable": [],
    }

    kept = rows(hub.database, "select verdict is null, refusal from effects order by seq")
    assert kept == [(1, "expired"), (0, None)]
    lines = (agent.folder / "tombstones.jsonl").read_text().splitlines()
    first = json.loads(json.loads(lines[0])["body"])
    assert (first["named"], first["found"], first["rows"]) == (1, 1, 1)
    again = await skerry("erase", SUBJECT, "--dir", str(agent.folder), "--json")
    assert again == {
        "answers": 0,
        "questions": 1,
        "hubs": {"hub-1": 1},
        "found": {"hub-1": 0},
        "left": [],
        "readable": [],
    }


async def test_a_subject_is_gone_from_device_and_hub_and_the_ledgers_never_had_it(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    document = tmp_path / "policy.toml"
    text = POLICY.format(mode="hub_first", budget_s=PATIENT_S)
    document.write_text(text.replace('purpose = "test"', 'purpose = "test"\nsubject_field = "patient"'))
    hub = await stage.start_hub(bundle.path, policies=(document,))
    agent = await stage.add_agent("a", bundle.path, document, QUICK)
    await stage.start_agent(agent)
    hers = [await ask(stage, agent, bundle, x, parameters={"subject": SUBJECT}) for x in samples(3)]
    other = await ask(stage, agent, bundle, samples(1, 4)[0], parameters={"subject": "somebody else"})
    assert {answer["source"] for answer in (*hers, other)} == {"hub"}
    await settle(stage)

    held = list_erasable(agent.database, hub.database, {answer["answer_id"] for answer in hers})
    assert find_bytes(tmp_path, held), "else this test finds nothing"
    done = await skerry("erase", SUBJECT, "--dir", str(agent.folder), "--json")
    facts = {"answers": 3, "questions": 3, "hubs": {"hub-1": 3}, "found": {"hub-1": 3}}
    assert done == {**facts, "left": [], "readable": []}
    assert find_bytes(tmp_path, held) == {}, "while agent and hub run"

    ids = {answer["answer_id"] for answer in hers}
    assert {id_ for (id_,) in rows(agent.database, "select id from answers")} == {other["answer_id"]}
    kept = rows(hub.database, "select verdict is null, subject is null, refusal from effects order by seq")
    assert kept == [(1, 1, "expired")] * 3 + [(0, 0, None)]
    assert ids <= {id_ for (id_,) in rows(agent.database, "select id from ledger")}, "the audit keeps its hashes"
    assert len(rows(hub.database, "select * from tombstones")) == 1
    stone = json.loads(json.loads((agent.folder / "tombstones.jsonl").read_text().splitlines()[0])["body"])
    assert (stone["device"], stone["rows"], stone["hub"]) == (agent.device, 3, "hub-1")
    assert (stone["named"], stone["found"]) == (3, 3)

    again = await skerry("erase", SUBJECT, "--dir", str(agent.folder), "--json")
    assert (again["answers"], again["left"]) == (0, [])
    await stage.stop()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files if b"CANARY-Ada" in path.read_bytes()] == []
