"""Text versions of labelled reports: the device's graph says what the training said, and bad input is one line."""

from pathlib import Path

import numpy as np
import pytest

from models.bundle.bundle import open_bundle
from models.bundle.hub_part import HubKind, open_hub_part
from models.bundle.manifest import EDGE_FILE, BundleError, ModelKind
from models.bundle.text_part import MessageRole, PromptMessage, TextTemplate, decode_text_template
from models.forge.data.types import ForgeError
from models.forge.text.hashing import hash_ngrams
from models.forge.text.version import TextRequest, make_text_version
from models.runtime.onnx_runner import OnnxRunner
from models.runtime.text import decode_text, encode_text
from models.verification.lint import lint_graph
from tests.live.doubles.texts import make_bundle, write_reports

PROMPT = TextTemplate(llm="chat", messages=(PromptMessage(MessageRole.USER, "Which? {text}"),))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    return make_bundle(tmp_path_factory.mktemp("made"))


def test_both_parts_are_of_kind_text_and_know_each_other(made) -> None:
    part = open_hub_part(made.path, made.manifest)
    assert (made.manifest.kind, part.manifest.kind) == (ModelKind.TEXT, HubKind.TEXT)
    assert decode_text_template(part.read_file(part.manifest.graph)).llm == "chat"
    assert made.manifest.calibration.asked <= 0.5
    lint_graph(made.read_file(EDGE_FILE))


def test_the_device_knows_the_departments_and_sends_the_text_itself(made) -> None:
    runner = OnnxRunner(made)
    for text, label in (("the switch drops packets", "network"), ("a BEARING of the pump howls!", "pump")):
        found = runner.infer_one(encode_text(text, made.manifest.input))
        assert made.manifest.labels[found.prediction.label] == label
        assert decode_text(found.features["text"]) == text


@pytest.mark.further
def test_the_same_reports_make_the_same_version(made, tmp_path: Path) -> None:
    assert make_bundle(tmp_path).digest == made.digest


def test_n_grams_do_not_know_case_and_end_with_the_text() -> None:
    def hashed(text: str, size: int) -> set[int]:
        numbers, weights = hash_ngrams(np.frombuffer(text.encode().ljust(size, b"\0"), np.uint8)[None])
        return {int(n) for n, w in zip(numbers[0], weights[0], strict=True) if w}

    assert hashed("Pump LEAKS", 16) == hashed("pump leaks", 16) == hashed("pump leaks", 32)
    assert hashed("pump", 16) != hashed("pomp", 16)


def test_another_prompt_leaves_the_devices_half_as_it_is(made, tmp_path: Path) -> None:
    again = make_text_version(TextRequest(made.path, PROMPT, tmp_path / "triage-2"))
    assert again.manifest.model == "triage@2"
    assert again.read_file(EDGE_FILE) == made.read_file(EDGE_FILE)
    assert open_bundle(again.path).digest == again.digest != made.digest


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"text,label\n", "0 rows"),
        (b"words,label\na,b\n", "no column text"),
        (b"\xff\xfe", "UTF-8"),
        (b"text,label\na,\n", "line 2: has no label"),
        (b"text,label\n\n ,pump\n", "empty"),
        (b"text,label\nx,pump\nx,power\n", "two labels"),
        (b"text,label\nx,pump\ny,power\n", "fewer than 10"),
        (b"text,label\n" + b"x" * 300 + b",pump\n", "300 bytes"),
    ],
)
def test_reports_that_cannot_be_used_are_one_line(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "reports.csv").write_bytes(content)
    with pytest.raises(ForgeError, match=why) as error:
        make_text_version(TextRequest(tmp_path / "reports.csv", PROMPT, tmp_path / "out", max_bytes=200))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_prompt_without_a_place_for_the_text_writes_nothing(tmp_path: Path) -> None:
    prompt = TextTemplate(llm="chat", messages=(PromptMessage(MessageRole.USER, "Which?"),))
    with pytest.raises(BundleError, match="once"):
        make_text_version(TextRequest(write_reports(tmp_path / "r.csv"), prompt, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
