"""Standing orders in the hub's database, and the file `orders.json` in which hubs kept them before.

Rule: nothing here lowers anything: an older notice of a scope, a lower floor or counter is never stored over a higher
one, whichever hub is faster. So the old file may be read in at every start.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import sqlalchemy as sa

from cloud_hub.database.changes import Topic, record_change
from cloud_hub.database.connection import Location, open_part, read_snapshot
from cloud_hub.database.parts import REGISTRY
from cloud_hub.database.statements import lock_exclusively, write_rows
from cloud_hub.database.tables import documents, floors, notices
from cloud_hub.registry.orders import DenyNotice, Orders, OrdersState, SeenDocument
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import read_private_file

MAX_FILE_BYTES = 8 << 20


class OrdersStore:
    """The tables of the standing orders; one thread at a time."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, where: Location) -> "OrdersStore":
        """Open or create the tables. ExitError(DATABASE) if they cannot be used."""
        return cls(open_part(where, REGISTRY))

    def close(self) -> None:
        self._engine.dispose()

    def read(self) -> OrdersState:
        """All orders: notices by counter, so that of two the newer comes later."""
        with read_snapshot(self._engine) as connection:
            return read_orders(connection)

    def write_notice(self, notice: DenyNotice) -> DenyNotice:
        """Store a notice in place of its scope's; its counter is raised above all that are stored."""
        with self._engine.begin() as connection:
            lock_exclusively(connection, "orders")
            highest = connection.execute(sa.select(sa.func.max(notices.c.counter))).scalar() or 0
            notice = msgspec.structs.replace(notice, counter=max(notice.counter, highest + 1))
            write_rows(connection, notices, [msgspec.structs.asdict(notice)])
            record_change(connection, Topic.ORDERS)
        return notice

    def write_documents(self, seen: Mapping[str, SeenDocument], lowest: Mapping[str, int]) -> None:
        """Store documents by hash and floors by policy name."""
        with self._engine.begin() as connection:
            _write_documents(connection, seen, lowest)
            record_change(connection, Topic.ORDERS)

    def import_file(self, path: Path) -> None:
        """Read in what an `orders.json` holds; nothing if there is none.

        ExitError(DATABASE) for a damaged file, since a lost notice must not read as none.
        """
        if not path.exists():
            return
        found = _read_file(path)
        with self._engine.begin() as connection:
            lock_exclusively(connection, "orders")
            stored = {row.scope: row.counter for row in connection.execute(notices.select())}
            newer = [each for each in found.notices if each.counter > stored.get(each.scope, 0)]
            write_rows(connection, notices, [msgspec.structs.asdict(each) for each in newer])
            _write_documents(connection, found.seen, found.floors)
            record_change(connection, Topic.ORDERS)


def read_orders(connection: sa.Connection) -> OrdersState:
    """All orders: notices by counter, so that of two the newer comes later."""
    found = connection.execute(notices.select().order_by(notices.c.counter)).mappings()
    told = tuple(DenyNotice(**row) for row in found)
    lowest = {row.title: row.version for row in connection.execute(floors.select())}
    seen = {row.hash: SeenDocument(row.title, row.version) for row in connection.execute(documents.select())}
    return OrdersState(told, lowest, seen)


def open_orders(where: Location, older: Path | None = None) -> tuple[OrdersStore, Orders]:
    """Open a hub's standing orders, with the store to be closed. `older`: the file of an earlier version, if any.

    ExitError(DATABASE) if either cannot be used.
    """
    store = OrdersStore.open(where)
    try:
        if older is not None:
            store.import_file(older)
        return store, Orders(store, store.read())
    except ExitError:
        store.close()
        raise


def _write_documents(connection: sa.Connection, seen: Mapping[str, SeenDocument], lowest: Mapping[str, int]) -> None:
    rows = [{"hash": name, "title": each.title, "version": each.version} for name, each in seen.items()]
    write_rows(connection, documents, rows)
    write_rows(
        connection, floors, [{"title": title, "version": version} for title, version in lowest.items()],
        raised=("version",),
    )  # fmt: skip


def _read_file(path: Path) -> OrdersState:
    try:
        return msgspec.json.decode(read_private_file(path, MAX_FILE_BYTES), type=OrdersState)
    except msgspec.DecodeError as error:
        raise ExitError(ExitCode.DATABASE, f"{path} is damaged ({error}): restore it from a backup") from None
