"""What a hub says of a PostgreSQL server that it cannot or must not use: one line, an exit code each, no password."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cloud_hub.database.connection import open_part
from cloud_hub.database.errors import describe_url
from cloud_hub.database.parts import REGISTRY
from cloud_hub.database.server import check_server, check_url
from tests.postgres import PostgresServer
from wire.process.exit_codes import ExitCode, ExitError

SECRET = "no-such-secret"  # a wrong password


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


def refusal(url: str) -> ExitError:
    with pytest.raises(ExitError) as stop:
        check_server(url)
    said = str(stop.value)
    password = sa.make_url(url).password
    assert "\n" not in said
    assert not password or password not in said
    return stop.value


@pytest.mark.parametrize("url", ["", "mysql://a", "postgresql+asyncpg://a/b", "sqlite:///a.db", "no url"])
def test_another_kind_of_database_is_a_mistake_in_the_configuration(url: str):
    with pytest.raises(ExitError, match="postgresql") as stop:
        check_url(url)
    assert stop.value.code is ExitCode.CONFIG


def test_a_url_is_shown_without_its_password():
    assert (
        describe_url("postgresql+psycopg://hub:secret@db/skerry?passfile=x") == "postgresql+psycopg://hub:***@db/skerry"
    )


@pytest.mark.postgres
def test_a_sound_server_is_taken(url: str):
    check_server(url)


@pytest.mark.postgres
def test_a_wrong_password_and_an_unknown_database_are_told_apart_from_a_server_that_is_away(
    postgres: PostgresServer, url: str
):
    database = sa.make_url(url).database or ""
    assert refusal(postgres.url_of(database, SECRET)).code is ExitCode.CREDENTIALS
    assert refusal(postgres.url_of("never_made")).code is ExitCode.CREDENTIALS
    assert refusal("postgresql+psycopg://hub:secret@/x?host=/nowhere").code is ExitCode.SERVER_DOWN
    assert refusal("postgresql+psycopg://hub:secret@127.0.0.1:1/x").code is ExitCode.SERVER_DOWN


@pytest.mark.postgres
def test_a_read_only_database_is_refused_before_and_at_the_first_write(postgres: PostgresServer, url: str):
    postgres.run_statement(f"alter database {sa.make_url(url).database} set default_transaction_read_only = on")
    assert refusal(url).code is ExitCode.DISK
    with pytest.raises(ExitError, match="cannot be written") as stop:
        open_part(url, REGISTRY)
    assert stop.value.code is ExitCode.DISK


@pytest.mark.postgres
def test_a_user_who_may_create_nothing_is_told_so(postgres: PostgresServer, url: str):
    postgres.run_statement("create role guest login password 'guest'", url)
    found = sa.make_url(url).set(username="guest", password="guest").render_as_string(hide_password=False)
    with pytest.raises(ExitError, match="check user") as stop:
        open_part(found, REGISTRY)
    postgres.run_statement("drop role guest", url)
    assert stop.value.code is ExitCode.CREDENTIALS


@pytest.mark.postgres
def test_commits_are_durable_although_the_server_says_otherwise(postgres: PostgresServer, url: str):
    postgres.run_statement(f"alter database {sa.make_url(url).database} set synchronous_commit = off")
    engine = open_part(url, REGISTRY)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("show synchronous_commit").scalar() == "on"
    engine.dispose()


@pytest.mark.postgres
def test_a_server_that_may_lose_what_it_wrote_is_refused_unless_that_is_wanted():
    with PostgresServer({"fsync": "off"}) as careless:
        url = careless.url_of("postgres")
        assert refusal(url).code is ExitCode.UNSAFE_SERVER
        check_server(url, allow_fsync_off=True)
