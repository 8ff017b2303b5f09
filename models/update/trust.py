"""The judge of what may be believed: our own floors under TUF, and the names of what went wrong.

Law: values in, verdict out; nothing is read, fetched or written here. A floor holds while enough of the keys that
signed its evidence are still in their role; only a root, signed offline and never going back, can withdraw them.

Why so: TUF keeps its protection against rollback in two cache files. We keep the same knowledge apart from them, in the
same terms, so that it survives their loss and still lets a hub recover from stolen online keys (TUF specification
5.3.11, fast-forward attack): a root with new timestamp keys voids what the stolen ones said, and nothing else does.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

from wire.protocol.rollout import Failure

MAX_VERSION = 2**53  # a version beyond it is no count of anything
MAX_PATH_CHARS = 255
FREEZE_ALARM_POLLS = 2
TIME = "time"
META = "meta/"  # + file name in the snapshot: "meta/targets.json"
TARGET = "target/"  # + path of a target: "target/policy/demo.toml", or of a family: "target/models/digits"
SIGNED_MS = "skerry_signed_ms"  # field of timestamp.json: when the hub signed it, milliseconds since 1970
_PART = r"[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9_-]+)*"
_PATH = re.compile(rf"{_PART}(?:/{_PART}){{1,4}}")
_FAILURES = {
    "ExpiredMetadataError": Failure.FREEZE,
    "BadVersionNumberError": Failure.ROLLBACK,
    "RepositoryError": Failure.INTEGRITY,
    "DeserializationError": Failure.INTEGRITY,
    "LengthOrHashMismatchError": Failure.INTEGRITY,
    "DownloadLengthMismatchError": Failure.INTEGRITY,
    "BundleError": Failure.INTEGRITY,
    "SlowRetrievalError": Failure.SLOW_RETRIEVAL,
    "DownloadError": Failure.NETWORK,
    "OSError": Failure.DISK,  # the fetcher turns those of the network into DownloadError
    "Error": Failure.DISK,  # sqlite3.Error
}


def failure_of(error: BaseException) -> Failure:
    """The class of an exception, by the names of its ancestors: the nearest one that is known."""
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((_FAILURES[name] for name in names if name in _FAILURES), Failure.INTERNAL)


class Refusal(msgspec.Struct, frozen=True):
    """What is not believed, and why. The detail holds role names and numbers, never a payload."""

    failure: Failure
    detail: str


class Role(msgspec.Struct, frozen=True):
    """Who may sign for a role: fingerprints of distinct keys, and how many of them it takes."""

    keys: frozenset[str]
    threshold: int


class Floor(msgspec.Struct, frozen=True):
    """The highest version that was ever verified under a name, and the keys that had signed the evidence."""

    name: str
    version: int
    signers: frozenset[str] = frozenset()


class Seen(msgspec.Struct, frozen=True):
    """One complete, verified refresh.

    `roles`: the four of root. `versions`: by floor name. `signers`: of the timestamp and the snapshot.
    `signed_ms`: when the hub says it signed the timestamp; 0 if it does not. `offline_expires_ms`: the earlier expiry
    of root and targets, both signed offline.
    """

    root: int
    roles: Mapping[str, Role]
    versions: Mapping[str, int]
    signers: Mapping[str, frozenset[str]]
    signed_ms: int = 0
    offline_expires_ms: int = 0


Floors = Mapping[str, Floor]


def voucher(name: str) -> str:
    """The role whose signature said it: the timestamp vouches for itself, the snapshot's version and the hour."""
    return "snapshot" if name.startswith(META) else "timestamp"


def holds(floor: Floor, role: Role | None) -> bool:
    """True while the evidence would still verify: TUF's own test, made on fingerprints."""
    return role is not None and len(floor.signers & role.keys) >= role.threshold


def stale(floors: Floors, roles: Mapping[str, Role], cached: Mapping[str, int]) -> tuple[str, ...]:
    """Before a refresh: names of cached metadata that lies below its floor and must not be used as a start."""
    return tuple(name for name, version in cached.items() if _below(floors, roles, name, version))


def judge(floors: Floors, seen: Seen) -> Refusal | None:
    """After a refresh: None, or what is wrong with it although every signature was right."""
    return next(_objections(floors, seen), None)


def _objections(floors: Floors, seen: Seen) -> Iterator[Refusal]:
    root = floors.get("root")
    if root and seen.root < root.version:
        yield Refusal(Failure.ROLLBACK, f"root {seen.root}, seen before: {root.version}")
    for name, role in seen.roles.items():
        if len(role.keys) < role.threshold:
            yield _too_few(name, role)
    for name, version in seen.versions.items():
        if version > MAX_VERSION:
            yield Refusal(Failure.INTEGRITY, f"{name}: version {version} is beyond counting")
    for floor in floors.values():
        if floor.name not in seen.versions and _removed(floor, seen):
            yield Refusal(Failure.ROLLBACK, f"{floor.name} is gone, seen before: {floor.version}")
        elif _below(floors, seen.roles, floor.name, seen.versions.get(floor.name, floor.version)):
            yield Refusal(Failure.ROLLBACK, f"{floor.name} {seen.versions[floor.name]}, seen before: {floor.version}")


def _too_few(name: str, role: Role) -> Refusal:
    """TUF counts key ids; one key under two ids must not make a threshold of two."""
    return Refusal(Failure.INTEGRITY, f"{name}: {len(role.keys)} different keys, threshold {role.threshold}")


def _removed(floor: Floor, seen: Seen) -> bool:
    return floor.name.startswith(META) and holds(floor, seen.roles.get("snapshot"))


def _below(floors: Floors, roles: Mapping[str, Role], name: str, version: int) -> bool:
    floor = floors.get(name)
    return floor is not None and version < floor.version and holds(floor, roles.get(voucher(name)))


def raised(floors: Floors, seen: Seen) -> tuple[Floor, ...]:
    """The floors that change after a refresh `judge` had nothing against: each is higher, or replaces a void one."""
    versions = {**seen.versions, **({TIME: seen.signed_ms} if _credible(seen) else {})}
    found = (Floor(name, version, seen.signers[voucher(name)]) for name, version in versions.items())
    return tuple(floor for floor in found if changes(floors.get(floor.name), floor, seen.roles[voucher(floor.name)]))


def changes(old: Floor | None, new: Floor, role: Role) -> bool:
    """True if the new floor is to be written: it is higher, or the old one is void."""
    return old is None or new.version > old.version or not holds(old, role)


def _credible(seen: Seen) -> bool:
    """The online key alone must not carry our clock beyond what the offline keys signed for: that would lock us out."""
    return 0 < seen.signed_ms < seen.offline_expires_ms


def lift(clock_ms: int, least_ms: int, floors: Floors, roles: Mapping[str, Role]) -> int:
    """The hour to judge expiry by, milliseconds since 1970: the clock, but never before what we know has passed.

    A clock ahead is left alone: it makes us refuse, changes nothing we keep, and all is well again with the clock.
    """
    floor = floors.get(TIME)
    known = floor.version if floor and holds(floor, roles.get("timestamp")) else 0
    return max(clock_ms, least_ms, known)


def judge_target(floor: Floor | None, role: Role, path: str, version: int) -> Refusal | None:
    """None if this version of a target may be handed on. `role`: the one that lists it now. Equal is allowed."""
    if not 1 <= version <= MAX_VERSION:
        return Refusal(Failure.INTEGRITY, f"{path}: no version a target can have")
    if len(role.keys) < role.threshold:
        return _too_few(path, role)
    if floor and version < floor.version and holds(floor, role):
        return Refusal(Failure.ROLLBACK, f"{path} {version}, seen before: {floor.version}")
    return None


def line_of(path: str) -> str:
    """The name of a target's floor: all bundles of a family share one; any other path has its own."""
    parts = path.split("/")
    return TARGET + ("/".join(parts[:2]) if parts[0] == "models" else path)


def path_fits(path: str) -> bool:
    """True for a path of ours: two to five parts of small ASCII letters, digits, `_`, `-` and single dots inside."""
    return len(path) <= MAX_PATH_CHARS and bool(_PATH.fullmatch(path))


def frozen_polls(before: int, failure: Failure | None) -> int:
    """How many polls in a row met expired metadata. A poll that met nobody neither adds nor clears."""
    if failure is None:
        return 0
    return before + 1 if failure is Failure.FREEZE else before
