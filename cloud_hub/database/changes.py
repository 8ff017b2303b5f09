"""Changes that the other hubs of a region have to hear of: a revision of each topic, raised in the change's own commit.

Rule: whoever reads a revision finds at least what was changed up to it: the row of a topic stays locked until then, so
revisions are committed in their order. A hub with files is the only one, and writes none of this.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from cloud_hub.database.statements import is_postgres, write_rows
from cloud_hub.database.tables import changed, changes

CHANNEL = "skerry_changes"
MOST_SUBJECTS = 1000  # of one look; beyond that everything is read again


class Topic(StrEnum):
    """What hubs keep in memory, and another one may change."""

    DEVICES = "devices"  # subjects: ids
    KEYS = "keys"  # ids of API keys
    ORDERS = "orders"  # notices that deny all, floors of policies
    ERASURES = "erasures"  # marks of tombstones, hex
    FILES = "files"  # of `region.shared_files`
    MODELS = "models"  # retired versions, as `digits@7`
    USES = "uses"  # ids of devices that use other models than before
    ROLLOUTS = "rollouts"  # of whatever kind
    FLAWS = "flaws"  # ids of devices whose ledger heads contradict one another


def record_change(connection: sa.Connection, topic: Topic, subjects: Iterable[str] = ()) -> int:
    """Raise the revision of a topic in the transaction under way, and say which subjects changed; its last statement.

    Returns the revision; 0 where there are no other hubs.
    """
    if not is_postgres(connection):
        return 0
    insert = postgresql.insert(changes).values(topic=topic, revision=1)
    raised = insert.on_conflict_do_update(index_elements=[changes.c.topic], set_={"revision": changes.c.revision + 1})
    revision = int(connection.execute(raised.returning(changes.c.revision)).scalar_one())
    write_rows(connection, changed, [{"topic": topic, "subject": each, "revision": revision} for each in set(subjects)])
    connection.execute(sa.select(sa.func.pg_notify(CHANNEL, topic.value)))
    return revision


def read_revisions(connection: sa.Connection) -> Mapping[Topic, int]:
    """Revision of each topic that was ever changed; one that only a newer program knows is left out."""
    rows = connection.execute(sa.select(changes.c.topic, changes.c.revision))
    return {Topic(row.topic): row.revision for row in rows if row.topic in frozenset(Topic)}


def read_subjects(connection: sa.Connection, topic: Topic, after: int) -> frozenset[str] | None:
    """Subjects changed after a revision; None = too many, or any may have: read them all."""
    if after < 0:
        return None
    newer = (changed.c.topic == topic, changed.c.revision > after)
    found = connection.execute(sa.select(changed.c.subject).where(*newer).limit(MOST_SUBJECTS + 1)).scalars().all()
    return None if len(found) > MOST_SUBJECTS else frozenset(found)
