"""Metric names: one list in the docs, and dashboards and alerts use only metrics that exist."""

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests import ROOT
from tests.cloud_hub.doubles.api_site import Site, infer_body

RULES = ROOT / "deploy" / "prometheus"
BOARD = ROOT / "deploy" / "grafana" / "skerry-hub.json"
PROMTOOL = shutil.which("promtool") or ""
_NAME = re.compile(r"\bskerry_hub_[a-z_]+")
_ROW = re.compile(r"^\| `(skerry_hub_[a-z_]+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)
MOST_SERIES = 2000


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = await Site(tmp_path).open()
    await opened.ask("POST", "/v2/models/digits/infer", json=infer_body())
    yield opened
    await opened.close()


def documented() -> dict[str, tuple[str, str]]:
    page = (ROOT / "docs" / "hub-api.md").read_text(encoding="utf-8")
    return {name: (kind, labels.strip()) for name, kind, labels in _ROW.findall(page)}


async def exposed(site: Site) -> list[Any]:
    _, text = await site.ask("GET", "/metrics")
    return list(text_string_to_metric_families(text))


async def test_every_figure_is_documented_with_its_kind_and_labels(site):
    await site.ask("GET", "/metrics")
    found = {}
    for family in await exposed(site):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = (family.type, ", ".join(f"`{label}`" for label in sorted(labels)) or "-")
    assert documented() == found


async def test_no_caller_makes_the_series_grow(site):
    async def series() -> int:
        return sum(len(family.samples) for family in await exposed(site))

    await site.ask("GET", "/nowhere", headers=site.admin)
    before = await series()
    for number in range(100):
        await site.ask("GET", f"/v2/models/m{number}", headers={"X-Number": str(number)})
        await site.ask("GET", f"/nowhere/{number}", headers=site.admin)
        await site.ask("GET", f"/v1/admin/devices/demo--d{number}", headers=site.admin)
    assert await series() < before + 60
    assert await series() < MOST_SERIES


def exprs() -> list[str]:
    rules = yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]] + [
        target["expr"] for panel in board["panels"] for target in panel["targets"]
    ]


def test_every_page_names_only_figures_of_the_hub_that_exist():
    known = set(documented()) | {family.removesuffix("_total") for family in documented()}
    known |= {f"{name}_{part}" for name, (kind, _) in documented().items() if kind == "histogram" for part in PARTS}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        assert set(_NAME.findall(page.read_text(encoding="utf-8"))) <= known, page.name


def test_dashboard_and_alerts_name_only_what_is_documented():
    known = set(documented())
    known |= {f"{name}_{part}" for name, (kind, _) in documented().items() if kind == "histogram" for part in PARTS}
    for expr in exprs():
        assert set(_NAME.findall(expr)) <= known, expr


PARTS = ("bucket", "count", "sum")


def test_every_alert_says_who_is_called_and_why():
    rules = yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))
    for rule in rules["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".")
        assert "instance" in rule["annotations"]["summary"]


def test_panels_lie_side_by_side_and_not_on_each_other():
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert all(panel["targets"] and panel["title"] for panel in board["panels"])
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed: Debian has it in the package prometheus")
@pytest.mark.parametrize(
    "words",
    [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"), ("check", "config", "prometheus.yml")],
    ids=" ".join,
)
def test_promtool_finds_nothing_wrong(words):
    done = subprocess.run([PROMTOOL, *words], cwd=RULES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed: Debian has it in the package prometheus")
async def test_promtool_reads_what_the_hub_exposes(site):
    _, text = await site.ask("GET", "/metrics")
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "should" not in line or "error" in line]
    assert done.returncode in (0, 3), done.stderr  # 3: opinions on names
    assert complaints == []
