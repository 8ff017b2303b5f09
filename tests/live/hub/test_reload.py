"""Reload of a running hub: prices, limits, policies count at once, the rest is named, a wrong key changes nothing."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.system.client import call_hub_api
from policies.language.document import parse_policy
from tests import ROOT
from tests.in_process import skerry
from tests.live.hub.test_process import HubProcess
from wire.process.exit_codes import ExitCode

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
PRICES = '[costs]\ncurrency = "EUR"\nrequest = 0.001\n'
LIMITS = "[hub]\nmax_queued = 77\ntenant_rate_per_s = 5.0\nmax_wait_s = 3.0\n"
POLICY = (ROOT / "policies" / "templates" / "demo.toml").read_text(encoding="utf-8")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    started = HubProcess(tmp_path)
    yield started
    started.close()


def reload(hub: HubProcess) -> dict[str, Any]:
    done = skerry("hub", "reload", "--config", str(hub.folder / "hub.toml"), "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ask(hub: HubProcess, path: str) -> dict[str, Any]:
    return call_hub_api(hub.address(), "GET", path)


def test_prices_limits_and_policies_are_taken_and_what_cannot_is_named(hub: HubProcess, tmp_path: Path) -> None:
    hub.until(hub.ready)
    hub.end()
    file, policy = tmp_path / "hub.toml", tmp_path / "policy.toml"
    policy.write_text(POLICY)
    whole = 'policies = ["policy.toml"]\n' + file.read_text()
    file.write_text(whole)
    hub.process = hub.start()
    hub.until(hub.ready)
    assert ask(hub, "/v1/costs")["currency"] == ""

    policy.write_text(POLICY.replace("version = 1", "version = 2"))
    file.write_text(f"{whole}{PRICES}{LIMITS}drain_s = 1.0\n")
    told = reload(hub)
    limits = {"hub.max_queued", "hub.tenant_rate_per_s", "hub.max_wait_s"}
    assert set(told["changed"]) == {"costs.currency", "costs.request", *limits, "the policies' texts"}
    assert told["needs_restart"] == ["hub.drain_s"]
    assert ask(hub, "/v1/costs")["currency"] == "EUR"
    served = {each["hash"] for each in ask(hub, "/v1/admin/policies")["policies"]}
    assert parse_policy(policy.read_text()).compile().hash in served

    file.write_text(f"{whole}{PRICES.replace('EUR', 'CHF')}{LIMITS.replace('max_wait_s', 'max_wiat_s')}")
    hub.process.send_signal(signal.SIGHUP)
    hub.until(lambda: ask(hub, "/v1/admin/status")["reload"]["count"] == 2)
    assert "did you mean max_wait_s" in ask(hub, "/v1/admin/status")["reload"]["refused"]
    assert ask(hub, "/v1/costs")["currency"] == "EUR"

    file.write_text(whole)
    policy.write_text("no policy")
    done = skerry("hub", "reload", "--config", str(file))
    assert (done.returncode, "policy.toml" in done.stderr) == (ExitCode.CONFIG, True)
    assert ask(hub, "/v1/costs")["currency"] == "EUR"
    assert hub.ready()
