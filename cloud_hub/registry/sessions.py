"""Sessions of browsers that signed in with a key, and one-time codes that begin one; kept over a restart.

Rule: a session is a reference to a key, never a right of its own: who it may be is asked of the keys at every request,
so that a key that is taken back ends its sessions at once. Only the SHA-256 of a session's token is kept.
Rule: where there are too many sessions or codes, the oldest of the key that has most goes: none ends another's.
"""

import secrets
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Self

import msgspec

from wire.process.exit_codes import ExitError
from wire.process.files import write_private_file

SESSION_MS = 12 * 3_600_000
CODE_MS = 60_000
MAX_SESSIONS = 1000
MAX_CODES = 100


class SessionOwner(msgspec.Struct, frozen=True):
    """Whose session it is. `caller`: id of a key, or "admin"; `secret`: digest of the token that proved it, hex."""

    caller: str
    secret: str


class BrowserSession(msgspec.Struct, frozen=True):
    """One session. `digest`: SHA-256 of its token, hex. Times in ms of hub time."""

    digest: str
    owner: SessionOwner
    made_ms: int
    ends_ms: int


class BrowserSessions:
    """All sessions of one hub, in memory and in a file (mode 0600); `path` None: in memory alone, for tests.

    A file that cannot be written ends nothing: such sessions last until the hub restarts, and `unsaved` counts.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.unsaved = 0
        self._path = path
        self._known: dict[str, BrowserSession] = {}
        self._codes: dict[str, tuple[SessionOwner, int]] = {}

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the sessions of an earlier life of this hub; a damaged file holds none: people sign in again."""
        sessions = cls(path)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=list[BrowserSession])
        except (OSError, msgspec.DecodeError, RecursionError):
            return sessions
        sessions._known = {each.digest: each for each in found[-MAX_SESSIONS:]}
        return sessions

    def begin(self, owner: SessionOwner, now_ms: int) -> tuple[BrowserSession, str]:
        """Begin a session; returns it with its token, which is not kept."""
        token = secrets.token_urlsafe(32)
        session = BrowserSession(_digest(token), owner, now_ms, now_ms + SESSION_MS)
        self._known = {digest: each for digest, each in self._known.items() if each.ends_ms > now_ms}
        if len(self._known) >= MAX_SESSIONS:
            del self._known[_find_surplus({digest: each.owner for digest, each in self._known.items()}, owner)]
        self._known[session.digest] = session
        self._save()
        return session, token

    def find(self, token: str, now_ms: int) -> BrowserSession | None:
        """Return the session of a token; None if there is none, or it is over."""
        session = self._known.get(_digest(token))
        return session if session is not None and now_ms < session.ends_ms else None

    def end(self, session: BrowserSession) -> None:
        """End a session."""
        if self._known.pop(session.digest, None) is not None:
            self._save()

    def make_code(self, owner: SessionOwner, now_ms: int) -> str:
        """Make a code that begins one session within a minute, once."""
        self._codes = {code: kept for code, kept in self._codes.items() if kept[1] > now_ms}
        if len(self._codes) >= MAX_CODES:
            del self._codes[_find_surplus({digest: kept[0] for digest, kept in self._codes.items()}, owner)]
        code = secrets.token_urlsafe(32)
        self._codes[_digest(code)] = owner, now_ms + CODE_MS
        return code

    def use_code(self, code: str, now_ms: int) -> SessionOwner | None:
        """Use a code up; returns whose session it begins. None if it is unknown, used or too old."""
        owner, ends_ms = self._codes.pop(_digest(code), (None, 0))
        return owner if now_ms < ends_ms else None

    def _save(self) -> None:
        if self._path is None:
            return
        try:
            write_private_file(self._path, msgspec.json.encode([*self._known.values()]))
        except ExitError:
            self.unsaved += 1


def csrf_token(session_token: str) -> str:
    """Return the token that a page of this session sends with every change; no other site can know it."""
    return sha256(f"csrf {session_token}".encode()).hexdigest()


def _find_surplus(owners: Mapping[str, SessionOwner], comer: SessionOwner) -> str:
    """Return what makes room for something of `comer`: the oldest of who has most, its own where it has as many."""
    counts = Counter(owner.caller for owner in owners.values())
    largest = max(counts, key=lambda caller: (counts[caller] + (caller == comer.caller), caller == comer.caller))
    return next(digest for digest, owner in owners.items() if owner.caller == largest)


def _digest(token: str) -> str:
    return sha256(token.encode(errors="surrogateescape")).hexdigest()
