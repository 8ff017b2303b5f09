"""What the hub's commands share: how a record is printed for people and for programs."""

import json
import re

import pytest

from cloud_hub.cli.options import print_record

RECORD = {
    "device": "cam-7",
    "last_seen_ms": 1_795_755_120_000,
    "retired_ms": 0,
    "models": ["a@1", "a@2"],
    "why": "",
}


def test_a_date_has_no_unit_in_its_name_and_a_number_has(capsys: pytest.CaptureFixture[str]) -> None:
    print_record(RECORD, as_json=False)
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["last_seen"] == "2026-11-27 04:52"
    assert (rows["retired"], rows["models"], rows["why"]) == ("-", "a@1, a@2", "-")
    assert not [name for name, value in rows.items() if name.endswith("_ms") and not value.isdigit()]
    print_record(RECORD, as_json=True)
    assert json.loads(capsys.readouterr().out) == RECORD
