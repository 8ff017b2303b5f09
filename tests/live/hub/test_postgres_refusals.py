"""A hub process started on a server that it cannot use, or must not trust: one line that says what to do, one code."""

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from cloud_hub.database.connection import open_part
from cloud_hub.database.parts import VERSIONS
from cloud_hub.region.shared_files import KEY_FILE, RegionFacts, SharedFiles
from cloud_hub.region.vault import create_region_key
from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness
from tests import ROOT
from tests.postgres import PostgresServer
from wire.process.exit_codes import ExitCode

pytestmark = [pytest.mark.live, pytest.mark.postgres, pytest.mark.timeout(240)]
Hamper = Callable[[PostgresServer, str], str]  # makes a database unusable; the URL to start the hub with


def forget_password(server: PostgresServer, url: str) -> str:
    return server.url_of(str(sa.make_url(url).database), "not the password")


def go_away(_server: PostgresServer, url: str) -> str:
    nowhere = sa.make_url(url).update_query_dict({"host": "/nowhere"})
    return nowhere.render_as_string(hide_password=False)


def become_newer(server: PostgresServer, url: str) -> str:
    open_part(url, VERSIONS).dispose()
    server.run_statement("update versions.meta set value = '99' where key = 'schema'", url)
    return url


def become_read_only(server: PostgresServer, url: str) -> str:
    server.run_statement(f"alter database {sa.make_url(url).database} set default_transaction_read_only = on")
    return url


async def start(folder: Path, url: str) -> tuple[int, str]:
    """A hub process until it ends: its exit code and what it said."""
    config = folder / "hub.toml"
    config.write_text(f'state = "state"\nmodels = ["none"]\n[store]\nurl = "{url}"\n')
    words = (sys.executable, "-P", "-m", "cloud_hub", "--config", str(config))
    child = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
    said = (await child.communicate())[1].decode()
    return child.returncode or 0, said


@pytest.mark.parametrize(
    ("hamper", "code", "advice"),
    [
        (forget_password, ExitCode.CREDENTIALS, "check user, password and database"),
        (go_away, ExitCode.SERVER_DOWN, "start the server"),
        (become_newer, ExitCode.DATABASE, "update the program"),
        (become_read_only, ExitCode.DISK, "name the primary"),
    ],
)
async def test_a_server_that_cannot_be_used(
    postgres: PostgresServer, tmp_path: Path, hamper: Hamper, code: ExitCode, advice: str
):
    url = postgres.create_database()
    ended, said = await start(tmp_path, hamper(postgres, url))
    assert ended == code, said
    assert advice in said
    assert said.count("\n") == 1, said
    assert str(sa.make_url(url).password) not in said


async def test_a_second_hub_of_one_name_ends_and_the_first_serves_on(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path, postgres: PostgresServer
):
    url = postgres.create_database()
    hub = await stage.start_hub(bundle.path, {"store": {"url": url}})
    other = tmp_path / "other"
    (other / "state").mkdir(parents=True)
    shutil.copy(hub.folder / "region.key", other / "state")
    ended, said = await start(other, url)
    assert ended == ExitCode.NAME_TAKEN, said
    assert "another hub" in said
    assert said.count("\n") == 1, said
    assert str(sa.make_url(url).password) not in said
    async with stage.session.get(f"{hub.url}/readyz") as response:
        assert response.status == 200
    await hub.child.kill()
    await stage.launch_hub()  # whoever is gone holds no name


@pytest.mark.parametrize("known", [True, False], ids=["another key", "no key"])
async def test_a_hub_of_another_region_is_refused(postgres: PostgresServer, tmp_path: Path, known: bool):
    url = postgres.create_database()
    for name in ("first", "state"):
        (tmp_path / name).mkdir()
    facts = RegionFacts("hub-1", "local", "localhost", 18883)
    SharedFiles.open(url, tmp_path / "first", facts).close()
    if known:
        create_region_key(tmp_path / "state" / KEY_FILE)
    ended, said = await start(tmp_path, url)
    assert ended == ExitCode.REGION_KEY, said
    assert "copy region.key of its hubs" in said
    assert said.count("\n") == 1, said


async def test_a_server_that_may_lose_what_it_says_it_has_written(tmp_path: Path, postgres: PostgresServer):
    del postgres  # where it is skipped, this is too
    with PostgresServer({"fsync": "off"}) as careless:
        ended, said = await start(tmp_path, careless.create_database())
    assert ended == ExitCode.UNSAFE_SERVER, said
    assert "allow_fsync_off" in said
    assert said.count("\n") == 1, said
