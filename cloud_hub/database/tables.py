"""Every table of the hub, in one SQLAlchemy metadata; the schema of a table names the part that it belongs to.

On PostgreSQL a part is a schema of that name; on SQLite it is a file, in which the tables have no schema. Rule: every
number is 64 bits wide on both (SQLite's always are), since times are in ms since 1970.
"""

from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData()
QUESTIONS, REGISTRY, ACCESS = "questions", "registry", "access"
LEDGER, VERSIONS, ROLLOUTS = "ledger", "versions", "rollouts"
REGION = "region"  # on a server alone

# SQLite's `integer` is 64 bits wide, and alone can be the key of its row trees.
Int64 = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _table(part: str, name: str, *columns: sa.schema.SchemaItem, **options: Any) -> sa.Table:
    return sa.Table(name, metadata, *columns, schema=part, **options)


def _key(name: str, kind: Any = sa.Text) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _index_part(name: str, where: str, *columns: str, unique: bool = False) -> sa.Index:
    """An index of the rows of which `where` is true; a statement that is to use it says so too."""
    part = sa.text(where)
    return sa.Index(name, *columns, unique=unique, postgresql_where=part, sqlite_where=part)


def _needed(name: str, kind: Any = sa.Text, default: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, server_default=default)


# The schema number of each part, as the row `schema`.
meta = {
    part: _table(part, "meta", _key("key", sa.String(32)), sa.Column("value", sa.Text))
    for part in (QUESTIONS, REGISTRY, ACCESS, LEDGER, VERSIONS, ROLLOUTS, REGION)
}

# -- questions: what devices asked and were answered, see `storage.store`


def _question_key() -> tuple[sa.Column[Any], ...]:
    return _key("device", sa.String(64)), _key("epoch", sa.BigInteger), _key("seq", sa.BigInteger)


# One row per accepted question. `verdict` or `refusal` is set once, with `ended_ms`.
effects = _table(
    QUESTIONS,
    "effects",
    *_question_key(),
    _needed("model"),
    _needed("policy"),
    _needed("created_ms", sa.BigInteger),
    _needed("kept_ms", sa.BigInteger),
    _needed("digest", sa.LargeBinary(32)),
    _needed("fingerprint", sa.LargeBinary(32)),
    sa.Column("ended_ms", sa.BigInteger),
    sa.Column("refusal", sa.Text),
    sa.Column("verdict", sa.LargeBinary),
    # since schema 2
    _needed("keep_until_ms", sa.BigInteger, "0"),  # then the verdict is deleted
    sa.Column("subject", sa.LargeBinary(32)),  # device's keyed hash of the person; only the device can compute it
    _needed("shard", sa.BigInteger, "0"),  # since schema 3: of the device, see `wire.protocol.topics`
    sa.Index("effects_kept", "kept_ms"),
    sa.Index("effects_keep_until", "keep_until_ms"),
    sa.Index("effects_subject", "device", "subject"),
    sqlite_with_rowid=False,
)

# The sealed frames of unanswered questions only, so that a restart reads this small table alone.
sealed = _table(
    QUESTIONS,
    "sealed",
    *_question_key(),
    _needed("frame", sa.LargeBinary),
    _needed("shard", sa.BigInteger, "0"),  # since schema 3
)

# Daily counts of verdicts by label and model, kept after the verdicts are deleted. See `storage.retention`.
tallies = _table(
    QUESTIONS,
    "tallies",
    _key("day", sa.Integer),
    _key("model"),
    _key("label", sa.Integer),
    _needed("count", sa.BigInteger),
)

# What was used, as sums of a day, by tenant, model and region. See `storage.costs`.
costs = _table(
    QUESTIONS,
    "costs",
    _key("day", sa.Integer),
    _key("tenant"),
    _key("model"),
    _key("region"),
    _key("kind"),
    _needed("amount", sa.BigInteger),
)

# Erased subjects, by a hash of their keyed hash: a question created before the erasure is not accepted again.
tombstones = _table(
    QUESTIONS,
    "tombstones",
    _key("mark", sa.LargeBinary(32)),
    _needed("device", sa.String(64)),
    _needed("before_ms", sa.BigInteger),
    _needed("rows", sa.BigInteger),
    _needed("at_ms", sa.BigInteger),
)

# Work that outlives its request, see `jobs`. `shard`: of its id; whoever serves it runs it. `claims`: how often a hub
# has begun it, so that what an earlier one says of it counts no more; `tries` of these failed, in `crashes` the hub
# ended. `timer_ms`: while it is open the end of its own time, then of its retention. `known_by`: a keyed digest of its
# Idempotency-Key, `fingerprint` one of its body. `hook`: sealed address that is told of its end, next at `notify_ms`.
jobs = _table(
    QUESTIONS,
    "jobs",
    _key("id"),
    _needed("tenant"),
    _needed("caller"),
    _needed("shard", Int64),
    _needed("model"),
    _needed("state"),
    _needed("made_ms", Int64),
    _needed("not_before_ms", Int64),
    _needed("timer_ms", Int64),
    _needed("tries", Int64, "0"),
    _needed("crashes", Int64, "0"),
    _needed("claims", Int64, "0"),
    _needed("why", default=""),
    _needed("timeout_ms", Int64),
    sa.Column("ended_ms", Int64),
    sa.Column("known_by", sa.LargeBinary),
    _needed("fingerprint", sa.LargeBinary),
    _needed("batch", default=""),
    _needed("line", Int64, "0"),
    _needed("device", default=""),
    sa.Column("subject", sa.LargeBinary),
    sa.Column("hook", sa.LargeBinary),
    sa.Column("notify_ms", Int64),
    _needed("notify_tries", Int64, "0"),
    _needed("custom_id", default=""),  # by which its caller knows it
    # A job is written three times, each of them in every index that has it: these have the few that they are for.
    _index_part("jobs_due", "ended_ms is null", "state", "tenant", "not_before_ms", "id"),
    _index_part("jobs_suspects", "ended_ms is null and crashes >= 2", "not_before_ms", "id"),
    sa.Index("jobs_timer", "timer_ms"),
    _index_part("jobs_known_by", "known_by is not null", "known_by", unique=True),
    _index_part("jobs_batch", "batch <> ''", "batch", "line"),
    _index_part("jobs_subject", "subject is not null", "device", "subject"),
    _index_part("jobs_notify", "notify_ms is not null", "notify_ms"),
)

# What a job computes, until it is computed no more, and its answer; each sealed under the hub's or region's key.
job_bodies = _table(
    QUESTIONS, "job_bodies", _key("id"), sa.Column("body", sa.LargeBinary), sa.Column("answer", sa.LargeBinary)
)

# Files of jobs, a line each. `lines` 0: still coming in. `timer_ms`: then it goes, unless jobs of it are there.
job_batches = _table(
    QUESTIONS,
    "job_batches",
    *(_key("id"), _needed("tenant"), _needed("made_ms", Int64), _needed("timer_ms", Int64), _needed("lines", Int64)),
    *(sa.Column("known_by", sa.LargeBinary), sa.Column("fingerprint", sa.LargeBinary)),
    sa.Index("job_batches_known_by", "known_by", unique=True),
)

# -- registry: devices, invites and standing orders, see `registry.registry` and `registry.orders_store`

devices = _table(
    REGISTRY,
    "devices",
    _key("id"),
    _needed("state"),
    _needed("signing_key", sa.LargeBinary),
    _needed("hpke_key", sa.LargeBinary),
    _needed("serial"),
    _needed("certificate_ends_ms", Int64),
    _needed("enrolled_ms", Int64),
    _needed("changed_ms", Int64),
    # since schema 2
    _needed("why", default=""),  # of the last change of state
    _needed("authority", default=""),  # SHA-256 of the CA that issued it, hex
    _needed("hardware", default=""),  # serial number that the machine reported
    _needed("retire_at_ms", Int64, "0"),
    _needed("ledger", default=""),  # SHA-256 of the ledger it exported, hex
    # since schema 3: set by the invite; policy rules may use them
    _needed("device_class", default=""),
    _needed("region", default=""),
)
invites = _table(
    REGISTRY,
    "invites",
    _key("token_hash", sa.LargeBinary),
    _needed("device"),
    _needed("created_ms", Int64),
    _needed("expires_ms", Int64),
    sa.Column("used_ms", Int64),
    # since schema 2
    _needed("hardware", default=""),  # JSON list; "" = any machine
    _needed("replace", Int64, "0"),  # also for a suspended device
    # since schema 3
    _needed("device_class", default=""),
    _needed("region", default=""),
)

# Since schema 4: the newest deny notice of each scope, the lowest version served of each policy name, and the policy
# documents that this hub was ever given, by hash.
notices = _table(
    REGISTRY, "notices", _key("scope"), _needed("counter", Int64), _needed("why"), _needed("issued_ms", Int64)
)
floors = _table(REGISTRY, "floors", _key("title"), _needed("version", Int64))
documents = _table(REGISTRY, "documents", _key("hash"), _needed("title"), _needed("version", Int64))

# -- access: API keys of tenants, see `registry.access`

api_keys = _table(
    ACCESS,
    "keys",
    _key("id"),
    _needed("name"),
    _needed("tenant"),
    _needed("scopes"),
    _needed("made_ms", Int64),
    _needed("ends_ms", Int64),
    _needed("revoked_ms", Int64),
    _needed("digest", sa.LargeBinary),
)

# -- ledger: the transparency log of the devices' ledger heads, see `storage.ledger_log`

nodes = _table(
    LEDGER, "nodes", _key("level", Int64), _key("place", Int64), _needed("hash", sa.LargeBinary),
    sqlite_with_rowid=False,
)  # fmt: skip
leaves = _table(
    LEDGER,
    "leaves",
    _key("place", Int64),
    _needed("device"),
    _needed("signer", sa.LargeBinary),
    _needed("epoch", Int64),
    _needed("entries", Int64),
    _needed("at_ms", Int64),
    _needed("head", sa.LargeBinary),
    _needed("signature", sa.LargeBinary),
    _needed("received_ms", Int64),
    _needed("epochs", Int64),
    _needed("flaw"),
    sa.Index("leaves_device", "device", "epoch", "entries"),
)
spend = _table(
    LEDGER, "spend", _key("device"), _key("account"), _key("period", Int64), _needed("amount", Int64),
    sqlite_with_rowid=False,
)  # fmt: skip
facts = _table(LEDGER, "facts", _key("name"), _needed("value", Int64), sqlite_with_rowid=False)

# -- versions: which device uses which model version, see `storage.versions`

spoken = _table(
    VERSIONS,
    "spoken",
    _key("device"),
    _key("name"),
    _key("version", Int64),
    _key("cut"),
    _key("codec"),
    sa.Column("at_ms", Int64),
    sqlite_with_rowid=False,
)
retired = _table(VERSIONS, "retired", _key("model"), sa.Column("at_ms", Int64), sqlite_with_rowid=False)

# -- rollouts: plans, progress, devices and history, see `rollout.store`

rollouts = _table(
    ROLLOUTS,
    "rollouts",
    _key("id"),
    _needed("family"),
    _needed("made_ms", Int64),
    _needed("changed_ms", Int64),
    _needed("open", sa.Boolean),
    _needed("revision", Int64),
    _needed("plan", sa.LargeBinary),
    _needed("head", sa.LargeBinary),
    sqlite_with_rowid=False,
)
rollout_devices = _table(
    ROLLOUTS,
    "devices",
    _key("rollout"),
    _key("device"),
    _needed("facts", sa.LargeBinary),
    sa.Index("devices_device", "device"),
    sqlite_with_rowid=False,
)
rollout_history = _table(
    ROLLOUTS,
    "history",
    _key("rollout"),
    _key("seq", Int64),
    _needed("at_ms", Int64),
    _needed("by"),
    _needed("what"),
    _needed("why"),
    _needed("state"),
    sqlite_with_rowid=False,
)
rollout_counters = _table(
    ROLLOUTS, "counters", _key("family"), _key("device"), _needed("counter", Int64), sqlite_with_rowid=False
)

# -- region: what the hubs that share a server tell each other, see `region`

# A hub that was there, by its name. Times by the server's clock. `session`: drawn by each process; `stated` is the one
# that wrote `release` and `serves` (JSON: part -> highest schema number), which the first release did not.
hubs = _table(
    REGION,
    "hubs",
    _key("name"),
    _needed("session"),
    _needed("since_ms", Int64),
    _needed("seen_ms", Int64),
    _needed("stated", default=""),
    _needed("release", default=""),
    _needed("serves", default=""),
)

# Number of each part that was contracted: a hub that serves less takes no lease. See `database.contraction`.
schemas = _table(REGION, "schemas", _key("part"), _needed("schema", Int64))

# The revision of each topic that hubs keep in memory, and of each subject of it the revision that changed it last. See
# `database.changes`.
changes = _table(REGION, "changes", _key("topic"), _needed("revision", Int64))
changed = _table(
    REGION,
    "changed",
    _key("topic"),
    _key("subject"),
    _needed("revision", Int64),
    sa.Index("changed_revision", "topic", "revision"),
)

# Who serves which shard and does which task until when, by the server's clock. `term` rises with each holder; `session`
# is drawn by each process. A row stays for ever; one without a holder has ended. `stated`: the session once more, which
# the first release did not write; from schema 2 on it holds no lease. `renewed_ms`:
# when it was renewed last; nor did that release write it. See `region.leases`.
leases = _table(
    REGION,
    "leases",
    _key("kind"),
    _key("number", Int64),
    _needed("hub", default=""),
    _needed("session", default=""),
    _needed("term", Int64, "0"),
    _needed("since_ms", Int64, "0"),
    _needed("until_ms", Int64, "0"),
    _needed("stated", default=""),
    _needed("renewed_ms", Int64, "0"),
    sa.CheckConstraint("stated = session", name="leases_stated"),
)

# Files that the hubs share, sealed under `region.key`. `digest` is keyed too. See `region.shared_files`.
shared_files = _table(
    REGION, "files", _key("path"), _needed("digest", sa.LargeBinary), _needed("sealed", sa.LargeBinary)
)

# Web requests with an Idempotency-Key, and their answers, sealed under `region.key`, which keys both digests too. The
# process `session` computes the `claim`-th of its requests while `answer` is null. See `serving.region_idempotency`.
requests = _table(
    REGION,
    "requests",
    _key("digest", sa.LargeBinary),
    _needed("fingerprint", sa.LargeBinary),
    _needed("session"),
    _needed("claim", Int64),
    _needed("until_ms", Int64),  # then the answer is deleted; by the server's clock
    sa.Column("answer", sa.LargeBinary),
    _needed("size", Int64, "0"),  # of the answer
    sa.Index("requests_until", "until_ms"),
)


def tables_of(part: str) -> list[sa.Table]:
    """Tables of a part, in the order in which they can be created and filled."""
    return [table for table in metadata.sorted_tables if table.schema == part]
