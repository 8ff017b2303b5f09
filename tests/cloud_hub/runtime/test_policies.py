"""The policies a hub serves under: files, its own repository, compositions; and following what is published."""

import asyncio
import io
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloud_hub.repository.publish import create_demo_repository, publish_policy
from cloud_hub.repository.repository import Repository
from cloud_hub.repository.signing_keys import OnlineKeys
from cloud_hub.runtime.config import HubConfig
from cloud_hub.runtime.policies import PolicyWatcher, compile_policies, read_nothing, repository_reader
from cloud_hub.security.hub_keys import HubCard
from models.signing.request import RequestError
from policies.language.document import PolicyError
from policies.model.policy import Policy
from tests.policies.doubles.given import TEXT, with_
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.logging import JsonLog

NOW = datetime.now(UTC)


def text(version: int = 1, name: str = "demo", layer: str = "tenant") -> bytes:
    edits = ("version = 1", f"version = {version}"), ('name = "demo"', f'name = "{name}"\nlayer = "{layer}"')
    return with_(TEXT, *edits).encode()


@pytest.fixture
def repository(tmp_path) -> Repository:
    made = Repository(tmp_path / "repository", OnlineKeys(tmp_path / "online"))
    create_demo_repository(made, HubCard("hub-1", "local", b"h" * 32, b"s" * 32), [], [text()], NOW)
    return made


def named(policies: tuple[Policy, ...]) -> list[list[tuple[str, int]]]:
    return [[(part.name, part.version) for part in policy.layers] for policy in policies]


def test_a_hub_serves_what_it_has_published(repository):
    assert named(compile_policies(["tuf:demo"], repository_reader(repository))) == [[("demo", 1)]]


def test_layers_are_composed_as_a_device_composes_them(repository, tmp_path):
    ward = tmp_path / "ward.toml"
    ward.write_bytes(text(name="ward", layer="site"))
    one, both = compile_policies(["tuf:demo", ("tuf:demo", str(ward))], repository_reader(repository))
    assert named((one, both)) == [[("demo", 1)], [("demo", 1), ("ward", 1)]]
    assert one.hash != both.hash


def test_what_is_not_published_yet_opens_the_hub_to_nothing(repository):
    assert compile_policies(["tuf:other"], repository_reader(repository)) == ()
    assert compile_policies(["tuf:demo"], read_nothing) == ()
    settings = HubConfig(policies=("tuf:other",)).hub_settings(repository_reader(repository))
    assert settings.policies, "an empty set would mean: any policy"


def test_layers_that_do_not_go_together_stop_the_hub(repository, tmp_path):
    other = tmp_path / "other.toml"
    other.write_bytes(text(name="other"))
    with pytest.raises(ExitError, match="layer") as stop:
        compile_policies([("tuf:demo", str(other))], repository_reader(repository))
    assert stop.value.code is ExitCode.POLICY


async def watched(watch: PolicyWatcher, served: list[list[tuple[str, int]]], count: int) -> None:
    """Wait until that many policy sets were served."""

    seen = asyncio.Event()

    async def serve(policies: tuple[Policy, ...]) -> None:
        served.extend(each for each in named(policies))
        seen.set()

    task = asyncio.create_task(watch.run(serve, 0.01))
    while len(served) < count:
        seen.clear()
        await asyncio.wait_for(seen.wait(), 60)
    task.cancel()


async def test_a_newer_version_is_served_at_once_beside_the_one_before(repository):
    start = compile_policies(["tuf:demo"], repository_reader(repository))
    watch = PolicyWatcher(["tuf:demo"], repository, JsonLog(io.StringIO()), start)
    publish_policy(repository, text(2), NOW)
    served: list[list[tuple[str, int]]] = []
    await watched(watch, served, 2)
    assert served == [[("demo", 2)], [("demo", 1)]]


async def ignore(_policies: tuple[Policy, ...]) -> None:
    """Serve nothing."""


async def test_a_hub_of_files_alone_watches_nothing(repository, tmp_path):
    path = tmp_path / "demo.toml"
    path.write_bytes(text())
    await asyncio.wait_for(PolicyWatcher([str(path)], repository, JsonLog(io.StringIO())).run(ignore), 60)


def test_an_older_or_changed_document_cannot_be_published(repository):
    publish_policy(repository, text(3), NOW)
    with pytest.raises(RequestError, match="raise the version"):
        publish_policy(repository, text(2), NOW)
    with pytest.raises(RequestError, match="raise the version"):
        publish_policy(repository, text(3).replace(b"0.9", b"0.8"), NOW)


def test_an_expired_document_cannot_be_published(repository):
    expired = text(4).replace(b"expires = 2099-12-31", b"expires = 2020-02-01")
    expired = expired.replace(b"issued = 2026", b"issued = 2020").replace(b"2020-11-22", b"2020-01-01")
    with pytest.raises(PolicyError, match="expired on 2020-02-01"):
        publish_policy(repository, expired, NOW)


def test_paths_of_the_configuration_are_relative_to_it(tmp_path):
    from cloud_hub.runtime.config import load_hub_config  # noqa: PLC0415

    file = tmp_path / "hub.toml"
    file.write_text('policies = ["tuf:demo", ["tuf:demo", "ward.toml"], "site.toml"]\n')
    below: Path = tmp_path
    assert load_hub_config(file).policies == (
        "tuf:demo",
        ("tuf:demo", str(below / "ward.toml")),
        str(below / "site.toml"),
    )
