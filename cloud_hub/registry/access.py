"""API keys of tenants (bearer tokens): creation, revocation, and which caller a token belongs to. Owns their rows.

Rule: a token is shown once, when it is created; only its SHA-256 is stored (256 random bits need no slow hash). A
tenant's key never reaches beyond its tenant, and no key can create keys: that takes the admin token.
"""

import hmac
import re
import secrets
from collections.abc import Collection, Iterable
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, Self

import msgspec
import sqlalchemy as sa

from cloud_hub.database.changes import Topic, record_change
from cloud_hub.database.connection import IN_MEMORY, Location, open_part, read_snapshot
from cloud_hub.database.parts import ACCESS
from cloud_hub.database.statements import write_rows
from cloud_hub.database.tables import api_keys
from wire.process.exit_codes import ExitCode, ExitError

MAX_KEYS = 10_000
MAX_NAME = 64
MAX_LIFE_S = 10 * 365 * 86_400
# Inside a character class of Python and ECMA 262: control, format and separator characters, which a terminal acts on.
UNPRINTABLE = (
    r"\u0000-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    r"\u3000\ue000-\uf8ff\ufeff\ufff0-\ufffb\ufffe\uffff"
)
NAME_PATTERN = f"[^{UNPRINTABLE}]{{1,{MAX_NAME}}}"
_KEY_MARK = "skerry_"  # how each key of a hub begins
_TOKEN = re.compile(_KEY_MARK + r"([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_TENANT = re.compile(r"[a-z0-9](?:[a-z0-9]|-(?!-)){0,61}")


def is_hub_key(token: str) -> bool:
    """Whether a token has the form of a hub's key, valid or not."""
    return token.startswith(_KEY_MARK)


class Scope(StrEnum):
    """Permissions of a caller. `admin` belongs to the admin token alone."""

    INFER = "infer"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


GRANTABLE_SCOPES = frozenset({Scope.INFER, Scope.READ, Scope.OPERATE})
_Grantable = Annotated[Scope, msgspec.Meta(extra_json_schema={"enum": sorted(GRANTABLE_SCOPES)})]


class Caller(msgspec.Struct, frozen=True):
    """Authenticated caller. `tenant` "" = the whole hub. `name`: id of its key, or `admin`, `local`, `nobody`."""

    name: str
    tenant: str = ""
    scopes: frozenset[Scope] = frozenset()

    def sees_tenant(self, tenant: str) -> bool:
        """Whether things of `tenant` are visible to this caller."""
        return not self.tenant or self.tenant == tenant


ADMIN = Caller("admin", "", frozenset(Scope))
LOCAL = Caller("local", "", frozenset({Scope.INFER, Scope.READ}))
NOBODY = Caller("nobody")


class KeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to create a key. `tenant` "" = for the whole hub; `expires_s` 0 = until it is revoked."""

    name: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{NAME_PATTERN}$"})]
    scopes: Annotated[tuple[_Grantable, ...], msgspec.Meta(extra_json_schema={"minItems": 1})]
    tenant: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^({_TENANT.pattern})?$"})] = ""
    expires_s: Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": MAX_LIFE_S})] = 0.0


class ApiKey(msgspec.Struct, frozen=True):
    """An API key without its secret. Times in ms of hub time, 0 = none."""

    id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    made_ms: int
    ends_ms: int
    revoked_ms: int

    def is_valid(self, now_ms: int) -> bool:
        """Whether it is neither revoked nor expired."""
        return not self.revoked_ms and (not self.ends_ms or now_ms < self.ends_ms)


class AccessError(Exception):
    """A key that cannot be created or does not exist: one readable line."""


class ApiKeys:
    """All API keys, in memory and in the database; callers are looked up in memory alone."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._known: dict[str, tuple[ApiKey, bytes]] = {}
        self._written: dict[str, int] = {}  # revision of what this hub changed itself
        with read_snapshot(engine) as connection:
            self.take_news(read_keys(connection), 0)

    @classmethod
    def open(cls, where: Location) -> Self:
        """Open or create the keys. ExitError(DATABASE) if they cannot be used."""
        engine = open_part(where, ACCESS)
        try:
            return cls(engine)
        except ValueError as error:
            engine.dispose()
            raise ExitError(ExitCode.DATABASE, f"the API keys are damaged ({error}): restore a backup") from None

    @classmethod
    def in_memory(cls) -> Self:
        """Keys that are not stored, for tests."""
        return cls.open(IN_MEMORY)

    def close(self) -> None:
        self._engine.dispose()

    def take_news(self, found: Iterable[tuple[ApiKey, bytes]], revision: int) -> None:
        """Take in keys with their digests as they were at a revision or later; what was changed here after it stays."""
        for key, digest in found:
            if self._written.get(key.id, 0) <= revision:
                self._known[key.id] = (key, digest)

    def list_keys(self) -> tuple[ApiKey, ...]:
        """All keys, oldest first, revoked and expired ones too."""
        return tuple(sorted((key for key, _ in self._known.values()), key=lambda key: (key.made_ms, key.id)))

    def create(self, wanted: KeyRequest, now_ms: int) -> tuple[ApiKey, str]:
        """Create a key; returns it with its token, which is not stored. AccessError if the request is not allowed."""
        _validate_request(wanted)
        if len(self._known) >= MAX_KEYS:
            raise AccessError(f"there are {MAX_KEYS} keys already")
        ends_ms = now_ms + int(wanted.expires_s * 1000) if wanted.expires_s else 0
        scopes = tuple(sorted(set(wanted.scopes)))
        key = ApiKey(
            secrets.token_hex(6),
            wanted.name,
            wanted.tenant,
            scopes=scopes,
            made_ms=now_ms,
            ends_ms=ends_ms,
            revoked_ms=0,
        )
        token = f"{_KEY_MARK}{key.id}_{secrets.token_urlsafe(32)}"
        self._write_key(key, sha256(token.encode()).digest())
        return key, token

    def revoke(self, key_id: str, now_ms: int) -> ApiKey:
        """Revoke a key at once. AccessError if there is none with this id."""
        found = self._known.get(key_id)
        if found is None:
            raise AccessError("no such key")
        key, digest = found
        revoked = key if key.revoked_ms else msgspec.structs.replace(key, revoked_ms=now_ms)
        self._write_key(revoked, digest)
        return revoked

    def find_caller(self, token: str, now_ms: int) -> Caller | None:
        """Caller that a token belongs to; None if it is unknown, revoked or expired. Compared in constant time."""
        match = _TOKEN.fullmatch(token)
        found = self._known.get(match[1]) if match else None
        if found is None:
            return None
        key, digest = found
        if not hmac.compare_digest(sha256(token.encode()).digest(), digest) or not key.is_valid(now_ms):
            return None
        return make_caller(key)

    def find_key_caller(self, key_id: str, now_ms: int) -> Caller | None:
        """Caller that a key of this id is; None if there is none, or it is revoked or expired."""
        found = self._known.get(key_id)
        return make_caller(found[0]) if found is not None and found[0].is_valid(now_ms) else None

    def _write_key(self, key: ApiKey, digest: bytes) -> None:
        row = {**msgspec.structs.asdict(key), "scopes": " ".join(key.scopes), "digest": digest}
        with self._engine.begin() as connection:
            write_rows(connection, api_keys, [row], raised=("revoked_ms",))
            self._written[key.id] = record_change(connection, Topic.KEYS, (key.id,))
        self._known[key.id] = (key, digest)


def make_caller(key: ApiKey) -> Caller:
    """Caller that a valid key is."""
    return Caller(key.id, key.tenant, frozenset(key.scopes))


def read_keys(connection: sa.Connection, ids: Collection[str] | None = None) -> list[tuple[ApiKey, bytes]]:
    """Keys with these ids, or all of them, each with its digest. ValueError if one is damaged."""
    query = api_keys.select() if ids is None else api_keys.select().where(api_keys.c.id.in_(ids))
    return [(_parse_key(row), bytes(row.digest)) for row in connection.execute(query)]


def _parse_key(row: sa.Row[Any]) -> ApiKey:
    scopes = tuple(Scope(word) for word in row.scopes.split())
    facts = {name: getattr(row, name) for name in ApiKey.__struct_fields__ if name != "scopes"}
    return ApiKey(scopes=scopes, **facts)


def _validate_request(wanted: KeyRequest) -> None:
    """AccessError unless scopes, tenant, name and lifetime are allowed."""
    if not wanted.scopes or not set(wanted.scopes) <= GRANTABLE_SCOPES:
        raise AccessError("scopes are one or more of infer, read, operate")
    if wanted.tenant and not _TENANT.fullmatch(wanted.tenant):
        raise AccessError("a tenant is lower-case letters, digits and single dashes")
    if not re.fullmatch(NAME_PATTERN, wanted.name):
        raise AccessError(f"a name is 1 to {MAX_NAME} printable characters")
    if not 0 <= wanted.expires_s <= MAX_LIFE_S:
        raise AccessError("a key lives for at most ten years")
