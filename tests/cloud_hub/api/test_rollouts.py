"""`/v1/admin/rollouts` over a real store and repository: access, refusals, approval by two people, undo."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cloud_hub.database.connection import IN_MEMORY
from cloud_hub.engine.base import EchoEngine
from cloud_hub.registry.access import Scope
from cloud_hub.repository.publish import publish_bundle, publish_permit, revoke_published
from cloud_hub.rollout.catalog import BundleTargets
from cloud_hub.rollout.controller import RolloutController
from cloud_hub.rollout.dependencies import RolloutDependencies
from cloud_hub.rollout.store import RolloutStore
from models.signing.roles import Permit, model_path
from policies.rollout_rules.plan import FleetMember
from tests.cloud_hub.doubles.api_site import CARD, Site
from tests.cloud_hub.doubles.fleet import NOW, Holder, Hub
from tests.cloud_hub.doubles.versions import make_version
from wire.process.logging import JsonLog
from wire.protocol.messages import ModelRef

PATH = "/v1/admin/rollouts"
FLEET = 120


class Rolls(Site):
    """With a store in memory, a repository that has echo@1 to echo@3, and devices that use echo@2."""

    def __init__(self, folder: Path, holder: Holder, hub: Hub) -> None:
        self.holder, self.state = holder, hub
        self.told: list[tuple[str, int]] = []
        fleet = [FleetMember(f"acme--d{n}", "camera" if n % 2 else "door", "eu", "acme") for n in range(FLEET)]
        self.speaking = speaking = {"echo@2": dict.fromkeys((m.device for m in fleet), 1)}
        self.catalog = BundleTargets(
            hub.repository, lambda model: speaking.get(model, {}), lambda: int(time.time() * 1000)
        )
        desk = RolloutDependencies(
            lambda d, a: self.told.append((d, a.version)),
            lambda *_: None,
            lambda: fleet,
            self.catalog.check_plan,
            JsonLog(),
        )
        self.rollouts = RolloutController(RolloutStore.open(IN_MEMORY), desk)
        super().__init__(folder, rollouts=self.rollouts, catalog=self.catalog)
        for version in (2, 3):
            card = replace(CARD, ref=ModelRef("echo", version, "c", "pack4"))
            self.hub.engines[card.name] = EchoEngine(card)

    async def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> tuple[int, Any]:
        return await self.ask("POST", PATH + path, json=body, headers=headers or self.admin)

    async def get(self, path: str = "") -> Any:
        status, body = await self.ask("GET", PATH + path, headers=self.admin)
        assert status == 200, body
        return body

    async def until(self, rollout: str, *states: str) -> Any:
        async with asyncio.timeout(60):
            while (found := await self.get(f"/{rollout}"))["state"] not in states:
                await asyncio.sleep(0.02)
        return found

    def permit(self, below: int, to: int) -> None:
        asked = publish_permit(self.state.repository, Permit("echo", below, to, int(time.time() * 1000) + 60_000), NOW)
        assert asked.request
        self.state.install(self.holder.sign(asked.request))


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository, `state`, that has echo@1 to echo@3, and its offline keys, `ring`: to be copied."""
    folder = tmp_path_factory.mktemp("published")
    hub = Hub(folder / "state")
    hub.install(Holder.begin(folder / "ring", hub.export(hold=("policy", "models-echo"))))
    for version in (1, 2, 3):
        publish_bundle(hub.repository, make_version(folder / f"echo-{version}", version=version).path, NOW)
    return folder


@pytest.fixture
async def site(tmp_path: Path, published: Path) -> AsyncIterator[Rolls]:
    shutil.copytree(published, tmp_path, symlinks=True, dirs_exist_ok=True)
    site = Rolls(tmp_path, Holder(tmp_path / "ring"), Hub(tmp_path / "state"))
    await site.open()
    work = asyncio.create_task(site.rollouts.run(0.02, 0.1))
    yield site
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    await site.close()


async def test_a_rollout_is_started_looked_at_paused_and_ended(site):
    status, made = await site.post("", model="echo@3", to="class=camera", id="r1")
    assert (status, made["devices"], made["fleet"], made["back"]["version"]) == (201, FLEET // 2, FLEET, 2)
    assert [each["id"] for each in (await site.get())["rollouts"]] == ["r1"]
    assert (await site.until("r1", "waiting_approval"))["people"] == 2
    friend = site.key("", Scope.READ, Scope.OPERATE)
    status, approved = await site.post("/r1/approve", friend, plan=made["plan"])
    assert (status, len(approved["approvals"])) == (200, 2)
    await site.until("r1", "running")
    assert (await site.post("/r1/pause", why="look"))[1]["state"] == "paused_manual"
    assert (await site.post("/r1/resume"))[1]["state"] == "running"
    assert (await site.post("/r1/abort", why="no"))[1]["state"] == "aborting"
    said = [(each["what"], each["by"]) for each in (await site.get("/r1/history"))["history"]]
    assert ("started", "admin") in said
    assert ("aborting", "admin") in said
    assert len((await site.get("/r1/devices"))["devices"]) == FLEET // 2


async def test_what_a_new_device_takes_is_what_the_fleet_has_committed_and_no_candidate_nor_what_was_taken_back(site):
    def committed() -> int:
        return int(site.catalog.committed_versions(site.rollouts.views())["echo"])

    assert committed() == 2  # most devices run it; 3 is listed
    await site.post("", model="echo@3", id="r1", to="class=door", rules={"waves": ["1"]})
    await site.until("r1", "running")
    site.speaking["echo@3"] = {f"d{n}": 1 for n in range(FLEET * 2)}  # the last wave: nearly all run it on trial
    assert committed() == 2
    await site.post("/r1/abort", why="no")
    assert committed() == 2
    site.speaking.clear()
    assert committed() == 2  # nobody runs anything: the newest that no rollout took back


async def test_the_same_person_twice_or_another_content_approves_nothing(site):
    _, made = await site.post("", model="echo@3", id="r1")
    await site.until("r1", "waiting_approval")
    assert (await site.post("/r1/approve", plan=made["plan"]))[0] == 409
    friend = site.key("", Scope.READ, Scope.OPERATE)
    status, said = await site.post("/r1/approve", friend, plan="0" * 64)
    assert status == 409, said
    assert (await site.get("/r1"))["state"] == "waiting_approval"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "echo"}, 400, "name one version"),
        ({"model": "echo@9"}, 404, "skerry models publish"),
        ({"model": "echo@1"}, 409, "skerry models permit echo --to 1 --from-below 3"),
        ({"model": "echo@3", "to": "colour=red"}, 400, "write class="),
        ({"model": "echo@3", "to": "class=tank"}, 400, "no device"),
        ({"model": "echo@3", "rules": {"success_share": "abc"}}, 400, "success_share"),
        ({"model": "echo@3", "rules": {"sucess": 1}}, 400, "sucess"),
        ({"model": "echo@3", "more": 1}, 400, "more"),
        ({"model": "../etc/passwd@1"}, 400, "family"),
    ],
)
async def test_what_cannot_be_started_says_why(site, body, status, words):
    found, said = await site.post("", **body)
    assert (found, words in said["error"]) == (status, True), said


async def test_a_threshold_that_is_no_number_is_refused_by_its_name(site):
    for value in ("abc", -1, 101, None, [1], True):
        status, said = await site.post("", model="echo@3", rules={"max_failure_share": value})
        assert (status, "max_failure_share" in said["error"]) == (400, True), value


async def test_a_revoked_version_and_one_that_the_hub_cannot_serve_are_not_begun(site):
    del site.hub.engines["echo@3"]
    status, said = await site.post("", model="echo@3")
    assert (status, "models_folder" in said["error"]) == (409, True)
    revoke_published(site.state.repository, model_path("echo", 3), NOW)
    status, said = await site.post("", model="echo@3")
    assert (status, "revoked" in said["error"]) == (409, True)


async def test_undo_needs_a_permit_and_takes_back_what_is_under_way(site):
    _, made = await site.post("", model="echo@3", id="r1", to="class=door", rules={"waves": ["1"]})
    await site.until("r1", "running")
    status, said = await site.post("/r1/undo", why="3 mistakes sevens")
    assert (status, "skerry models permit echo --to 2 --from-below 4" in said["error"]) == (409, True), said
    site.permit(4, 2)
    status, view = await site.post("/r1/undo", why="3 mistakes sevens")
    assert (status, view["id"], view["state"]) == (200, "r1", "aborting")
    assert made["permit"] == ""


async def test_after_its_end_undo_is_a_rollout_of_the_version_before_for_two_people(site):
    await site.post("", model="echo@3", id="r1", to="class=door", rules={"waves": ["1"], "withdraw_s": 0})
    await site.until("r1", "running")
    await site.post("/r1/abort", why="no")
    await site.until("r1", "aborted")
    site.permit(4, 2)
    status, view = await site.post("/r1/undo")
    assert (status, view["target"]["version"], view["people"]) == (200, 2, 2)
    assert view["permit"].endswith("to-2-from-below-4.json")


async def test_whose_rollouts_are_not_his_own_sees_and_does_nothing(site):
    await site.post("", model="echo@3", id="r1")
    tenant = site.key("acme", Scope.READ, Scope.OPERATE)
    viewer = site.key("", Scope.READ)
    for path in ("", "/r1/pause", "/r1/abort", "/r1/approve", "/r1/undo"):
        assert (await site.post(path, tenant))[0] == 403
        assert (await site.post(path, viewer))[0] == 403
    assert (await site.ask("GET", PATH, headers=tenant))[0] == 403
    assert (await site.ask("GET", PATH, headers=viewer))[0] == 200
    assert (await site.post("/r9/pause"))[0] == 404


async def test_a_hub_without_rollouts_says_so(tmp_path):
    site = await Site(tmp_path).open()
    status, said = await site.ask("POST", PATH, json={"model": "echo@3"}, headers=site.admin)
    assert (status, said["error"]) == (409, "this hub has no update repository: docs/trust.md, the first keys")
    await site.close()


async def test_rollouts_are_counted_for_who_watches(site):
    await site.post("", model="echo@3", id="r1")
    await site.until("r1", "waiting_approval")
    _, text = await site.ask("GET", "/metrics")
    assert 'skerry_hub_rollouts{state="waiting_approval"} 1.0' in text
    assert f'skerry_hub_rollout_devices{{state="queued"}} {float(FLEET)}' in text
    assert 'skerry_hub_rollout_alarms{alarm="waits"} 1.0' in text
