"""Makes deleted rows of a part unreadable: an SQLite file is rewritten and its log emptied, a server's rows vacuumed.

Rule: on a server the bytes of deleted rows may stay in its pages until they are used again, in its write-ahead log,
replicas and archives; `docs/regions.md` says what its operator does about that.
"""

import sqlite3
import time

import sqlalchemy as sa

from cloud_hub.database.parts import DatabasePart

LOG_WAIT_S = 5.0  # for another process that reads the file
LOG_RETRY_S = 0.1


class LogInUseError(Exception):
    """Another process reads an older state of the file, so that its log still holds what was deleted."""


def rewrite_part(engine: sa.Engine, part: DatabasePart) -> None:
    """Rewrite a part without what was deleted, over a connection of its own, outside any transaction.

    LogInUseError, or SQLAlchemyError if there is no room. An SQLite file takes as much of the disk again meanwhile.
    """
    if engine.dialect.name == "sqlite":
        _rewrite_file(engine)
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in part.tables:
            connection.exec_driver_sql(f"vacuum {connection.dialect.identifier_preparer.format_table(table)}")


def _rewrite_file(engine: sa.Engine) -> None:
    raw = engine.raw_connection()  # SQLAlchemy would begin a transaction, in which there is no VACUUM
    try:
        driver = raw.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.execute("vacuum")
        until = time.monotonic() + LOG_WAIT_S
        while driver.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
            if time.monotonic() > until:
                raise LogInUseError
            time.sleep(LOG_RETRY_S)
    except sqlite3.Error as error:
        raise sa.exc.OperationalError(None, None, error) from None
    finally:
        raw.close()
