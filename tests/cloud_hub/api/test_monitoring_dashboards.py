"""Metric names: one list in the docs, and dashboards and alerts use only metrics that exist."""

import json
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cloud_hub.api.aging import group_roles
from cloud_hub.llm.service import LanguageModels
from cloud_hub.llm.settings import LlmSettings, ReplicaAddress
from tests import ROOT
from tests.cloud_hub.doubles.api_site import Site, infer_body

RULES = ROOT / "deploy" / "prometheus"
BOARD = ROOT / "deploy" / "grafana" / "skerry-hub.json"
_NAME = re.compile(r"\bskerry_hub_[a-z_]+")
_ROW = re.compile(r"^\| `(skerry_hub_[a-z_]+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)
MOST_SERIES = 2000


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    chat = LlmSettings(name="chat", urls=(ReplicaAddress("http://127.0.0.1:9"),))
    opened = await Site(tmp_path, language_models=LanguageModels([chat])).open()
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


@pytest.mark.further
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


async def test_what_ages_has_a_figure_before_it_ends(site):
    await site.enrolled("demo--cam-1")
    now = datetime.now(UTC)
    ends = {"root": now + timedelta(days=100), "models-a": now + timedelta(days=3), "permits": now + timedelta(days=9)}
    assert group_roles(ends) == {"root": ends["root"], "delegated": ends["models-a"]}
    site.hub.facts["engines_down"] = ["digits@7"]
    _, text = await site.ask("GET", "/metrics")
    (left,) = re.findall(r'skerry_hub_certificate_left_seconds\{certificate="ca"\} (\S+)', text)
    assert 3600 < float(left) / 86_400 < 3700
    for line in (
        'skerry_hub_device_certificates{state="valid"} 1.0',
        "skerry_hub_devices_silent 0.0",
        'skerry_hub_engine_down{model="digits@6"} 0.0',
        'skerry_hub_engine_down{model="digits@7"} 1.0',
        'skerry_hub_gang_rebuilds_total{model="digits@7"} 2.0',
        'skerry_hub_engine_weight_bytes{device="cuda:0",model="digits@6",precision="bfloat16"} 2048.0',
        'skerry_hub_engine_fallback{model="digits@7"} 1.0',
        'skerry_hub_engine_fallback{model="digits@6"} 0.0',
    ):
        assert line in text


@pytest.mark.parametrize(("days", "certificate"), [(0, "valid"), (5.5, "valid"), (6.5, "ending"), (9, "expired")])
async def test_a_device_is_silent_after_a_day_and_its_certificate_is_seen_to_end(tmp_path, days, certificate):
    clock = [int(time.time() * 1000)]
    site = await Site(tmp_path, now_ms=lambda: clock[0]).open()
    await site.enrolled("demo--cam-1")
    clock[0] += int(days * 86_400_000)
    site.hub.facts["uptime_s"] = days * 86_400
    _, text = await site.ask("GET", "/metrics")
    site.hub.heard["demo--cam-1"] = clock[0] / 1000 - 3600
    _, heard = await site.ask("GET", "/metrics")
    site.hub.heard.clear()
    site.hub.facts["uptime_s"] = 60.0  # a hub that has just begun knows of nobody's silence
    _, begun = await site.ask("GET", "/metrics")
    site.hub.facts["uptime_s"] = days * 86_400
    site.hub.served.serve_by_lease()  # another hub of the region hears it, or did until a minute ago
    _, elsewhere = await site.ask("GET", "/metrics")
    site.hub.served.add(range(256), clock[0] / 1000 - 60)
    _, gained = await site.ask("GET", "/metrics")
    await site.close()
    for each in (elsewhere, gained):
        assert "skerry_hub_devices_silent 0.0" in each
    assert f'skerry_hub_device_certificates{{state="{certificate}"}} 1.0' in text
    assert f"skerry_hub_devices_silent {float(days > 1)}" in text
    assert "skerry_hub_devices_silent 0.0" in heard
    assert "skerry_hub_devices_silent 0.0" in begun


def test_every_alert_says_who_is_called_and_why():
    rules = yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".")
        assert "instance" in rule["annotations"]["summary"]


def test_every_alert_is_seen_to_fire_and_not_to_fire_by_promtool():
    """The tests themselves are run by `make alerts` and in `tests/live/hub/test_alerts.py`."""
    rules = yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))
    told = yaml.safe_load((RULES / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    seen = [(case["alertname"], bool(case["exp_alerts"])) for test in told for case in test["alert_rule_test"]]
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert {name for name, fires in seen if fires} == names
    assert {name for name, fires in seen if not fires} >= names - {"HubRefusesMuch"}


@pytest.mark.parametrize("name", ["skerry-hub.json", "skerry-agent.json"])
def test_panels_lie_side_by_side_and_not_on_each_other(name):
    board = json.loads((BOARD.parent / name).read_text(encoding="utf-8"))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert all(panel["targets"] and panel["title"] for panel in board["panels"])
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
