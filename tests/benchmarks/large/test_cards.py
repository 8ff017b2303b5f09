"""Rows of graphics cards on a machine without one: nothing is measured, and each row says which command does."""

import json
from pathlib import Path

import pytest

from benchmarks.harness.figures import format_line
from benchmarks.large import __main__ as command
from benchmarks.large import cards
from policies.serving.computing import DeviceChoice


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "count_usable_cards", lambda: 0)


def test_without_a_card_each_row_names_the_command_and_its_aim(tmp_path: Path) -> None:
    figures = cards.measure_cards(tmp_path)
    assert [format_line(figure) for figure in figures] == [
        "card: bfloat16 and CUDA graph step over torch eager float32: not measured (aim <= 0.35 x)",
        "card: share of its measured peak at the best batch: not measured (aim >= 60 %)",
        "cuda: p50 of a sealed escalation over the model's own time: not measured (aim <= 1.3 x)",
        "cuda: BERT-Large in the hub's engine, bfloat16 over float32: a batch of 8 texts: not measured (aim <= 0.5 x)",
    ]
    assert all("make bench-large ARGS='--only cards'" in term for figure in figures for term in figure.terms)


def test_what_was_not_measured_is_kept_as_null_and_read_again(tmp_path: Path) -> None:
    kept = tmp_path / "cards.json"
    assert command._measure_row("cards", kept) == 0
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert [each["value"] for each in found["figures"]] == [None] * 4
    row = command.read_kept_row(kept, command.describe_code())
    assert row is not None
    assert not any(figure.held for figure in row.figures)


@pytest.mark.further
def test_the_row_of_precisions_says_the_time_of_each_or_why_it_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    figure = cards.measure_precisions(tmp_path, DeviceChoice.CPU, {**sizes, "vocab_size": 40})
    assert figure.value > 0
    assert [term.split()[0].rstrip(":") for term in figure.terms] == ["float32", "bfloat16", "float16", "int8"]
