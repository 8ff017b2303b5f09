"""Prometheus' own tools read the alert rules, their tests, the configuration and what hub and agent expose."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.cloud_hub.doubles.api_site import Site, infer_body
from tests.edge_agent.doubles.api_double import MemoryAgent, serve_api

pytestmark = pytest.mark.live
RULES = ROOT / "deploy" / "prometheus"


def promtool(*words: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    found = shutil.which("promtool")
    assert found, "promtool is missing: `apt-get install --no-install-recommends prometheus` has it"
    return subprocess.run([found, *words], cwd=RULES, capture_output=True, text=True, check=False, **more)


@pytest.mark.parametrize(
    "words",
    [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"), ("check", "config", "prometheus.yml")],
    ids=" ".join,
)
def test_promtool_finds_nothing_wrong(words):
    done = promtool(*words)
    assert done.returncode == 0, done.stdout + done.stderr


def judge(text: str) -> None:
    done = promtool("check", "metrics", input=text)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "should" not in line or "error" in line]
    assert done.returncode in (0, 3), done.stderr  # 3: opinions on names
    assert complaints == []


async def test_promtool_reads_what_the_hub_exposes(tmp_path: Path):
    site = await Site(tmp_path).open()
    await site.ask("POST", "/v2/models/digits/infer", json=infer_body())
    _, text = await site.ask("GET", "/metrics")
    await site.close()
    judge(text)


async def test_promtool_reads_what_the_agent_exposes():
    async with serve_api(MemoryAgent()) as session:
        judge(await (await session.get("/metrics")).text())
