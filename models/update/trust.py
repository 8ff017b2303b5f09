"""Trust rules above TUF: version floors per role and target, freeze detection, and classes of failures. Pure.

Rule: values in, verdict out; nothing is read, fetched or written here. A floor holds while enough of the keys that
signed its evidence are still in their role; only a root, signed offline and never going back, can withdraw them.

Why so: TUF keeps its protection against rollback in two cache files. We keep the same knowledge apart from them, in the
same terms, so that it survives their loss and still lets a hub recover from stolen online keys (TUF specification
5.3.11, fast-forward attack): a root with new timestamp keys voids what the stolen ones said, and nothing else does.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

from wire.protocol.rollout import Failure

MAX_VERSION = 2**53  # the largest whole number that JSON readers hold exactly
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
    """Classify an exception as a `Failure` by the names of its ancestors: the nearest one known, else INTERNAL.

    By name, so that this module needs neither tuf nor sqlite3.
    """
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((_FAILURES[name] for name in names if name in _FAILURES), Failure.INTERNAL)


class Refusal(msgspec.Struct, frozen=True):
    """Reason why something is not accepted. The detail holds role names and numbers, never a payload."""

    failure: Failure
    detail: str


class Role(msgspec.Struct, frozen=True):
    """Signing role: fingerprints of its distinct keys, and the threshold of signatures that it takes."""

    keys: frozenset[str]
    threshold: int


class Floor(msgspec.Struct, frozen=True):
    """Version floor: the highest version ever verified under a name, and the keys that had signed the evidence.

    `signers`: fingerprints; empty for "root", whose floor never goes down.
    """

    name: str
    version: int
    signers: frozenset[str] = frozenset()


class Seen(msgspec.Struct, frozen=True):
    """Result of one complete, verified refresh of the TUF metadata.

    `roles`: the four of root. `versions`: by floor name. `signers`: of the timestamp and the snapshot.
    `signed_ms`: when the hub says it signed the timestamp, milliseconds since 1970; 0 if it does not.
    `offline_expires_ms`: the earlier expiry of root and targets, both signed offline.
    """

    root: int
    roles: Mapping[str, Role]
    versions: Mapping[str, int]
    signers: Mapping[str, frozenset[str]]
    signed_ms: int = 0
    offline_expires_ms: int = 0


Floors = Mapping[str, Floor]


def voucher(name: str) -> str:
    """Return the role whose signature vouches for a floor.

    The timestamp vouches for itself, the snapshot's version and the time; the snapshot for all other metadata.
    """
    return "snapshot" if name.startswith(META) else "timestamp"


def holds(floor: Floor, role: Role | None) -> bool:
    """Tell whether a floor's evidence would still verify: enough of its signers are still in the role.

    TUF's own test, made on fingerprints. `role` None: there is no such role any more, so the floor is void.
    """
    return role is not None and len(floor.signers & role.keys) >= role.threshold


def stale(floors: Floors, roles: Mapping[str, Role], cached: Mapping[str, int]) -> tuple[str, ...]:
    """Find cached metadata below its floor, before a refresh: it must not be used as a start.

    `cached`: floor name to the version in the cache. Returns the names to delete.
    """
    return tuple(name for name, version in cached.items() if _below(floors, roles, name, version))


def judge(floors: Floors, seen: Seen) -> Refusal | None:
    """Check a complete refresh against the floors: None, or what is wrong although every signature was right."""
    return next(_objections(floors, seen), None)


def _objections(floors: Floors, seen: Seen) -> Iterator[Refusal]:
    """Yield every objection to a refresh: versions that went down, too few distinct keys, metadata that vanished."""
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
    """Refuse a role with fewer distinct keys than its threshold: one key under two ids must not count twice."""
    return Refusal(Failure.INTEGRITY, f"{name}: {len(role.keys)} different keys, threshold {role.threshold}")


def _removed(floor: Floor, seen: Seen) -> bool:
    """Tell whether metadata with a valid floor is gone from the snapshot."""
    return floor.name.startswith(META) and holds(floor, seen.roles.get("snapshot"))


def _below(floors: Floors, roles: Mapping[str, Role], name: str, version: int) -> bool:
    """Tell whether a version lies below a floor that holds."""
    floor = floors.get(name)
    return floor is not None and version < floor.version and holds(floor, roles.get(voucher(name)))


def raised(floors: Floors, seen: Seen) -> tuple[Floor, ...]:
    """Compute the floors that change after a refresh that `judge` accepted: each is higher, or replaces a void one."""
    versions = {**seen.versions, **({TIME: seen.signed_ms} if _credible(seen) else {})}
    found = (Floor(name, version, seen.signers[voucher(name)]) for name, version in versions.items())
    return tuple(floor for floor in found if changes(floors.get(floor.name), floor, seen.roles[voucher(floor.name)]))


def changes(old: Floor | None, new: Floor, role: Role) -> bool:
    """Tell whether a new floor is to be written: it is higher, or the old one is void."""
    return old is None or new.version > old.version or not holds(old, role)


def _credible(seen: Seen) -> bool:
    """Tell whether the timestamp's signing time may lift our clock.

    The online key alone must not carry it beyond what the offline keys signed for: that would lock us out.
    """
    return 0 < seen.signed_ms < seen.offline_expires_ms


def lift(clock_ms: int, least_ms: int, floors: Floors, roles: Mapping[str, Role]) -> int:
    """Return the time to judge expiry by: the clock, but never before what is known to have passed.

    All in milliseconds since 1970. `clock_ms`: the device's clock; `least_ms`: of this build or of the enrollment. A
    clock ahead is left alone: it makes us refuse, changes nothing we keep, and all is well again with the clock.
    """
    floor = floors.get(TIME)
    known = floor.version if floor and holds(floor, roles.get("timestamp")) else 0
    return max(clock_ms, least_ms, known)


def judge_target(floor: Floor | None, role: Role, path: str, version: int) -> Refusal | None:
    """Check one version of a target against its floor: None if it may be installed. An equal version is allowed.

    `role`: the one that lists it now; `floor`: of its line, None if there is none or a permit lowers it.
    """
    if not 1 <= version <= MAX_VERSION:
        return Refusal(Failure.INTEGRITY, f"{path}: version {version} is impossible")
    if len(role.keys) < role.threshold:
        return _too_few(path, role)
    if floor and version < floor.version and holds(floor, role):
        return Refusal(Failure.ROLLBACK, f"{path} {version}, seen before: {floor.version}")
    return None


def line_of(path: str) -> str:
    """Return the name of a target's floor: all bundles of a family share one; any other path has its own."""
    parts = path.split("/")
    return TARGET + ("/".join(parts[:2]) if parts[0] == "models" else path)


def path_fits(path: str) -> bool:
    """Tell whether a target path is one of ours.

    Two to five parts of lower-case ASCII letters, digits, `_`, `-` and single dots inside: it cannot leave a folder.
    """
    return len(path) <= MAX_PATH_CHARS and bool(_PATH.fullmatch(path))


def frozen_polls(before: int, failure: Failure | None) -> int:
    """Count the polls in a row that met expired metadata. A poll that reached nobody neither adds nor clears."""
    if failure is None:
        return 0
    return before + 1 if failure is Failure.FREEZE else before
