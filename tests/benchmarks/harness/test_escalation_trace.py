"""One escalation, traced in a process of its own: a profile function would slow down and confuse this one."""

import json
import subprocess
import sys

import pytest

from tests import ROOT


@pytest.mark.further
def test_a_traced_escalation_crosses_both_sides():
    words = [sys.executable, "-m", "benchmarks.harness.escalation_trace", "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert all(found["files_by_part"][part] > 5 for part in ("edge", "hub", "shared"))
    assert sum(found["files_by_part"].values()) == found["files"] == len(found["entered"])
    assert 0 < found["share"] < 1
    assert found["share"] == found["changes"] / found["calls"]
