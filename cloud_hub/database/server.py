"""A PostgreSQL server: how the hub connects to it, and whether it is one that nothing accepted can be lost on.

Rule: what a server only promises is refused. With `fsync` off a power cut loses what was said to be written, so the hub
runs on such a server only where its configuration says so.
"""

import time
from typing import Any

import sqlalchemy as sa

from cloud_hub.database.errors import describe_url, explain_error
from wire.process.exit_codes import ExitCode, ExitError

LEAST_VERSION = 13
CONNECT_TIMEOUT_S = 5
APPLICATION = "skerry-hub"
# A peer that is gone without a word is noticed within some ten seconds; a lock is waited for five. Statements are
# planned each time: psycopg prepares what it repeats, and the server would keep a plan made when a table was empty.
# Rows that were just written are found in memory, or on a disk without heads: not four times as dear as those beside.
_OPTIONS: dict[str, Any] = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "application_name": APPLICATION,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "options": "-c lock_timeout=5s -c idle_in_transaction_session_timeout=30s -c plan_cache_mode=force_custom_plan"
    " -c random_page_cost=1.1",
}
MAX_CLOCK_OFF_S = 300.0  # certificates begin so much before they are issued, and questions may be asked so far ahead
_FACTS = ("server_version_num", "server_encoding", "fsync", "full_page_writes", "transaction_read_only")


def name_writer(session: str) -> str:
    """Name of a connection, as the server lists it, while it writes under the leases of a hub's process."""
    return f"{APPLICATION} {session}"


def list_connection_options(url: str) -> dict[str, Any]:
    """Options of libpq for a connection; what the URL itself says goes over them."""
    said = sa.make_url(url).query
    return {name: value for name, value in _OPTIONS.items() if name not in said}


def on_server_connect(connection: Any, _record: Any) -> None:
    """Make commits durable on a new connection where the server's default is that they are not."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
        )
    connection.commit()


def check_url(url: str) -> str:
    """Check a `[store] url`. ExitError(CONFIG) unless it is `postgresql+psycopg://...` and the driver is installed."""
    try:
        named = sa.make_url(url).drivername
    except sa.exc.ArgumentError:
        named = "no URL"
    if named != "postgresql+psycopg":
        raise ExitError(ExitCode.CONFIG, f"[store] url is {named}: write postgresql+psycopg://USER@HOST/DATABASE")
    try:
        import psycopg  # noqa: F401, PLC0415 - of the extra `postgres`
    except ImportError:
        raise ExitError(
            ExitCode.CONFIG,
            "[store] url names PostgreSQL, whose driver is missing: in this folder, pip install -e '.[postgres]'",
        ) from None
    return url


def check_server(url: str, *, allow_fsync_off: bool = False) -> None:
    """Check that a server can be used and keeps what it says it has written.

    ExitError: SERVER_DOWN if it cannot be reached, CREDENTIALS if it refuses the user, password or database, DATABASE
    if it is older than PostgreSQL 13 or its texts are not UTF-8, DISK if it is read-only, UNSAFE_SERVER if `fsync` or
    `full_page_writes` is off, CLOCK if this machine's clock is too far from its own.
    """
    engine = sa.create_engine(
        check_url(url), poolclass=sa.NullPool, hide_parameters=True, connect_args=list_connection_options(url)
    )
    try:
        with engine.connect() as connection:
            shown = sa.select(*(sa.func.current_setting(name).label(name) for name in _FACTS))
            found = dict(connection.execute(shown).mappings().one())
            said_s = float(connection.exec_driver_sql("select extract(epoch from clock_timestamp())").scalar_one())
            off_s = time.time() - said_s
    except sa.exc.DBAPIError as error:
        raise explain_error(error, url) from None
    _check_facts(found, describe_url(url), allow_fsync_off=allow_fsync_off)
    wrong = describe_clock(off_s)
    if wrong:
        raise ExitError(ExitCode.CLOCK, f"{wrong}, or that of {describe_url(url)}")


def describe_clock(off_s: float) -> str:
    """Say that a machine's clock is too far from the server's, and what to do; "" if it is not.

    `off_s`: how far it is ahead, negative if it is behind.
    """
    if abs(off_s) <= MAX_CLOCK_OFF_S:
        return ""
    way = "ahead of" if off_s > 0 else "behind"
    return f"this machine's clock is {abs(off_s):.0f} s {way} the database's: set it right"


def _check_facts(found: dict[str, str], where: str, *, allow_fsync_off: bool) -> None:
    version = int(found["server_version_num"]) // 10_000
    if version < LEAST_VERSION:
        raise ExitError(
            ExitCode.DATABASE, f"{where} is PostgreSQL {version}: {LEAST_VERSION} or newer is needed, update it"
        )
    if found["server_encoding"] != "UTF8":
        raise ExitError(
            ExitCode.DATABASE, f"{where} keeps texts as {found['server_encoding']}: create a database of encoding UTF8"
        )
    if found["transaction_read_only"] == "on":
        raise ExitError(ExitCode.DISK, f"{where} is read-only: name the primary, not a standby")
    off = [name for name in ("fsync", "full_page_writes") if found[name] == "off"]
    if off and not allow_fsync_off:
        raise ExitError(
            ExitCode.UNSAFE_SERVER,
            f"{where} has {off[0]} off and may lose what it says it has written: turn it on, or set "
            "allow_fsync_off = true in [store]",
        )
