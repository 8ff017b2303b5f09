"""A regressor: a model of integer inputs that answers with a value, over every input and output of the device."""

import asyncio
import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from math import inf, nan
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_agent.api.explanation import explain_answer
from edge_agent.api.service import find_value
from edge_agent.question.records import AnswerKind, AnswerRecord, AnswerSource
from edge_agent.sources.feed import SampleFeed
from edge_agent.sources.files.folder import FolderWatcher
from edge_agent.sources.json_lines import JsonLines
from edge_agent.storage import answers, schema
from models.bundle.manifest import InputSpec, ModelKind
from models.bundle.measurements import GateFigures
from models.runtime.runner import EchoRunner, Inference, check_sample
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.api_double import MemoryAgent, serve_api
from tests.edge_agent.sources.test_image_files import npy
from wire.process.logging import JsonLog
from wire.protocol.messages import Prediction, TensorDType

WHY: dict[str, Any] = {"ledger": [], "outcome": None, "truth": 90.25}


class HalfRunner(EchoRunner):
    """Three whole numbers in 0..9; its value is half of their sum."""

    def __init__(self) -> None:
        super().__init__(3)
        spec = InputSpec("ids", TensorDType.INT64, (3,), 0.0, 9.0)
        changes = {
            "kind": ModelKind.REGRESSOR,
            "labels": (),
            "outputs": 1,
            "gate": GateFigures(tolerance=1.0),
            "input": spec,
        }
        self.manifest = msgspec.structs.replace(self.manifest, **changes)

    def infer_one(self, sample: Any) -> Inference:
        check_sample(sample, self.manifest.input)
        return Inference(Prediction(-1, 0.75, (float(sample.sum()) / 2,), self.manifest.model), {})


@pytest.fixture
def agent() -> MemoryAgent:
    agent = MemoryAgent()
    agent.runner = HalfRunner()
    return agent


def body(ids: list[list[int]]) -> dict[str, Any]:
    return {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [len(ids), 3], "data": ids}]}


async def reply(request: Any, status: int = 200) -> Any:
    async with request as response:
        read = await response.json()
        assert response.status == status, read
        return read


async def test_it_is_described_and_answers_by_its_value(agent):
    async with serve_api(agent) as session:
        card = await reply(session.get("/v2/models/echo"))
        asked = await reply(session.post("/v2/models/echo/infer", json=body([[1, 2, 4], [9, 9, 9]])))
    told = {"low": 0.0, "high": 9.0}
    assert card["inputs"] == [{"name": "ids", "datatype": "INT64", "shape": [-1, 3], "parameters": told}]
    assert [(output["name"], output["shape"]) for output in card["outputs"]] == [
        ("value", [-1, 1]),
        ("confidence", [-1]),
    ]
    assert {output["name"]: output["data"] for output in asked["outputs"]} == {
        "value": [3.5, 13.5],
        "confidence": [0.75, 0.75],
    }


@pytest.mark.parametrize("ids", [[[1, 2, 10]], [[1, -1, 2]]])
async def test_a_number_beyond_the_table_is_refused(agent, ids):
    async with serve_api(agent) as session:
        told = await reply(session.post("/v2/models/echo/infer", json=body(ids)), 400)
    assert "0..9" in told["error"]
    assert agent.samples == []


@pytest.mark.parametrize(("truth", "status"), [(4.25, 200), (-3, 200), ("many", 400), (True, 400), (None, 400)])
async def test_its_truth_is_a_number(agent, truth, status):
    async with serve_api(agent) as session:
        asked = await reply(session.post("/v2/models/echo/infer", json=body([[1, 2, 4]])))
        id_ = asked["parameters"]["answer_id"]
        await reply(session.post(f"/v1/answers/{id_}/feedback", json={"truth": truth}), status)
    assert agent.truths == ({id_: truth} if status == 200 else {})


async def test_a_file_and_a_line_of_whole_numbers_are_answered(agent, tmp_path):
    written: list[bytes] = []
    feed = SampleFeed(agent, "open")
    folder = FolderWatcher(tmp_path, feed, 0.01, JsonLog(io.StringIO()))
    (tmp_path / "a.npy").write_bytes(npy(np.array([1, 2, 4], np.int64)))
    (tmp_path / "b.npy").write_bytes(npy(np.array([1, 2, 4], np.float32)))
    for _ in range(2):
        await folder.scan_once()
    told = json.loads((tmp_path / "done" / "a.npy.json").read_text())
    assert (told["value"], told["label"], told["label_name"]) == (3.5, -1, "")
    assert "int64" in json.loads((tmp_path / "failed" / "b.npy.json").read_text())["error"]

    async def said() -> Any:
        for line in (b'{"x": [9, 9, 0]}', b'{"x": [1, 2, 11]}', b'{"x": [0.5, 1, 2]}'):
            yield line
            await asyncio.sleep(0)

    await JsonLines(feed, written.append).run(said())
    first, *rest = sorted(map(json.loads, written), key=lambda line: line["line"])
    assert first["value"] == 9.0
    assert all("error" in line for line in rest)


def record(kind: AnswerKind, value: float, source: AnswerSource) -> dict[str, Any]:
    why = DecisionReason.VERDICT if source is AnswerSource.HUB else DecisionReason.UNSURE
    prediction = Prediction(-1, 0.4, (value,), "engines@3")
    made = AnswerRecord("a" * 32, kind, source, why, prediction, "ab" * 16, "open", "1-1")
    built: dict[str, Any] = msgspec.to_builtins(made)
    return {**built, "prediction": msgspec.structs.asdict(prediction)}


@pytest.mark.parametrize(("second", "word"), [(91.5, "corrected"), (88.125, "confirmed")])
def test_why_tells_values_and_whether_the_hub_found_another(second, word):
    records = [
        record(AnswerKind.ANSWER, 88.125, AnswerSource.LOCAL),
        record(AnswerKind.CORRECTION, second, AnswerSource.HUB),
    ]
    told = {line.about: line.text for line in explain_answer({"records": records, **WHY})}
    assert told["answer"] == "88.125, confidence 0.400"
    assert told[word].startswith(f"{'to' if word == 'corrected' else 'as'} {second}, confidence")
    assert told["truth"] == "90.25, as a user said"


def test_a_classifiers_prediction_has_no_value():
    assert find_value(Prediction(1, 0.5, (0.5, 0.5), "m@1")) is None
    assert find_value(Prediction(-1, 0.0, (), "")) is None


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as made:
        schema.migrate_schema(made, ":memory:")
        yield made


def answered(value: float, confidence: float) -> AnswerRecord:
    prediction = Prediction(-1, confidence, (value,), "engines@3")
    return AnswerRecord(
        "a" * 32, AnswerKind.ANSWER, AnswerSource.LOCAL, DecisionReason.INVALID_CONFIDENCE, prediction, "", "open"
    )


@pytest.mark.parametrize("truth", [87.5, 3])
def test_a_table_of_labels_keeps_a_value_as_it_is(db, truth):
    answers.insert_answer(db, answered(88.0, 0.5))
    assert answers.store_truth(db, "a" * 32, truth, 1)
    assert answers.read_truth(db, "a" * 32) == truth


def test_an_answer_without_a_confidence_is_on_record_all_the_same(db):
    answers.insert_answer(db, answered(inf, nan))
    (kept,) = answers.read_records(db, "a" * 32)
    assert (kept.prediction.confidence, kept.why) == (0.0, DecisionReason.INVALID_CONFIDENCE)
