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

from wire.protocol.rollout import InstallFailure

MAX_VERSION = 2**53  # the largest whole number that JSON readers hold exactly
MAX_PATH_CHARS = 255
FREEZE_ALARM_POLLS = 2
TIME_FLOOR = "time"
META_PREFIX = "meta/"  # + file name in the snapshot: "meta/targets.json"
TARGET_PREFIX = "target/"  # + path of a target: "target/policy/demo.toml", or of a family: "target/models/digits"
SIGNED_MS_FIELD = "skerry_signed_ms"  # field of timestamp.json: when the hub signed it, milliseconds since 1970
_PART = r"[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9_-]+)*"
_PATH = re.compile(rf"{_PART}(?:/{_PART}){{1,4}}")
_FAILURE_CLASSES = {
    "ExpiredMetadataError": InstallFailure.FREEZE,
    "BadVersionNumberError": InstallFailure.ROLLBACK,
    "RepositoryError": InstallFailure.INTEGRITY,
    "DeserializationError": InstallFailure.INTEGRITY,
    "LengthOrHashMismatchError": InstallFailure.INTEGRITY,
    "DownloadLengthMismatchError": InstallFailure.INTEGRITY,
    "BundleError": InstallFailure.INTEGRITY,
    "SlowRetrievalError": InstallFailure.SLOW_RETRIEVAL,
    "DownloadError": InstallFailure.NETWORK,
    "OSError": InstallFailure.DISK,  # the fetcher turns those of the network into DownloadError
    "Error": InstallFailure.DISK,  # sqlite3.Error
}


def classify_failure(error: BaseException) -> InstallFailure:
    """Classify an exception as a `InstallFailure` by the names of its ancestors: the nearest one known, else INTERNAL.

    By name, so that this module needs neither tuf nor sqlite3.
    """
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((_FAILURE_CLASSES[name] for name in names if name in _FAILURE_CLASSES), InstallFailure.INTERNAL)


class Refusal(msgspec.Struct, frozen=True):
    """Reason why something is not accepted. The detail holds role names and numbers, never a payload."""

    failure: InstallFailure
    detail: str


class TrustedRole(msgspec.Struct, frozen=True):
    """Signing role: fingerprints of its distinct keys, and the threshold of signatures that it takes."""

    keys: frozenset[str]
    threshold: int


class VersionFloor(msgspec.Struct, frozen=True):
    """Version floor: the highest version ever verified under a name, and the keys that had signed the evidence.

    `signers`: fingerprints; empty for "root", whose floor never goes down.
    """

    name: str
    version: int
    signers: frozenset[str] = frozenset()


class VerifiedRefresh(msgspec.Struct, frozen=True):
    """Result of one complete, verified refresh of the TUF metadata.

    `roles`: the four of root. `versions`: by floor name. `signers`: of the timestamp and the snapshot.
    `signed_ms`: when the hub says it signed the timestamp, milliseconds since 1970; 0 if it does not.
    `offline_expires_ms`: the earlier expiry of root and targets, both signed offline.
    """

    root: int
    roles: Mapping[str, TrustedRole]
    versions: Mapping[str, int]
    signers: Mapping[str, frozenset[str]]
    signed_ms: int = 0
    offline_expires_ms: int = 0


FloorsByName = Mapping[str, VersionFloor]


def vouching_role(name: str) -> str:
    """Return the role whose signature vouches for a floor.

    The timestamp vouches for itself, the snapshot's version and the time; the snapshot for all other metadata.
    """
    return "snapshot" if name.startswith(META_PREFIX) else "timestamp"


def floor_holds(floor: VersionFloor, role: TrustedRole | None) -> bool:
    """Tell whether a floor's evidence would still verify: enough of its signers are still in the role.

    TUF's own test, made on fingerprints. `role` None: there is no such role any more, so the floor is void.
    """
    return role is not None and len(floor.signers & role.keys) >= role.threshold


def find_stale(floors: FloorsByName, roles: Mapping[str, TrustedRole], cached: Mapping[str, int]) -> tuple[str, ...]:
    """Find cached metadata below its floor, before a refresh: it must not be used as a start.

    `cached`: floor name to the version in the cache. Returns the names to delete.
    """
    return tuple(name for name, version in cached.items() if _is_below_floor(floors, roles, name, version))


def check_refresh(floors: FloorsByName, seen: VerifiedRefresh) -> Refusal | None:
    """Check a complete refresh against the floors: None, or what is wrong although every signature was right."""
    return next(_find_objections(floors, seen), None)


def _find_objections(floors: FloorsByName, seen: VerifiedRefresh) -> Iterator[Refusal]:
    """Yield every objection to a refresh: versions that went down, too few distinct keys, metadata that vanished."""
    root = floors.get("root")
    if root and seen.root < root.version:
        yield Refusal(InstallFailure.ROLLBACK, f"root {seen.root}, seen before: {root.version}")
    for name, role in seen.roles.items():
        if len(role.keys) < role.threshold:
            yield _too_few_keys(name, role)
    for name, version in seen.versions.items():
        if version > MAX_VERSION:
            yield Refusal(InstallFailure.INTEGRITY, f"{name}: version {version} is beyond counting")
    for floor in floors.values():
        if floor.name not in seen.versions and _was_removed(floor, seen):
            yield Refusal(InstallFailure.ROLLBACK, f"{floor.name} is gone, seen before: {floor.version}")
        elif _is_below_floor(floors, seen.roles, floor.name, seen.versions.get(floor.name, floor.version)):
            yield Refusal(
                InstallFailure.ROLLBACK, f"{floor.name} {seen.versions[floor.name]}, seen before: {floor.version}"
            )


def _too_few_keys(name: str, role: TrustedRole) -> Refusal:
    """Refuse a role with fewer distinct keys than its threshold: one key under two ids must not count twice."""
    return Refusal(InstallFailure.INTEGRITY, f"{name}: {len(role.keys)} different keys, threshold {role.threshold}")


def _was_removed(floor: VersionFloor, seen: VerifiedRefresh) -> bool:
    """Tell whether metadata with a valid floor is gone from the snapshot."""
    return floor.name.startswith(META_PREFIX) and floor_holds(floor, seen.roles.get("snapshot"))


def _is_below_floor(floors: FloorsByName, roles: Mapping[str, TrustedRole], name: str, version: int) -> bool:
    """Tell whether a version lies below a floor that holds."""
    floor = floors.get(name)
    return floor is not None and version < floor.version and floor_holds(floor, roles.get(vouching_role(name)))


def compute_raised_floors(floors: FloorsByName, seen: VerifiedRefresh) -> tuple[VersionFloor, ...]:
    """Compute the floors that change after a refresh that `check_refresh` accepted.

    Each is higher, or replaces a void one.
    """
    versions = {**seen.versions, **({TIME_FLOOR: seen.signed_ms} if _time_is_credible(seen) else {})}
    found = (VersionFloor(name, version, seen.signers[vouching_role(name)]) for name, version in versions.items())
    return tuple(
        floor for floor in found if floor_changes(floors.get(floor.name), floor, seen.roles[vouching_role(floor.name)])
    )


def floor_changes(old: VersionFloor | None, new: VersionFloor, role: TrustedRole) -> bool:
    """Tell whether a new floor is to be written: it is higher, or the old one is void."""
    return old is None or new.version > old.version or not floor_holds(old, role)


def _time_is_credible(seen: VerifiedRefresh) -> bool:
    """Tell whether the timestamp's signing time may lift our clock.

    The online key alone must not carry it beyond what the offline keys signed for: that would lock us out.
    """
    return 0 < seen.signed_ms < seen.offline_expires_ms


def lift_clock(clock_ms: int, least_ms: int, floors: FloorsByName, roles: Mapping[str, TrustedRole]) -> int:
    """Return the time to judge expiry by: the clock, but never before what is known to have passed.

    All in milliseconds since 1970. `clock_ms`: the device's clock; `least_ms`: of this build or of the enrollment. A
    clock ahead is left alone: it makes us refuse, changes nothing we keep, and all is well again with the clock.
    """
    floor = floors.get(TIME_FLOOR)
    known = floor.version if floor and floor_holds(floor, roles.get("timestamp")) else 0
    return max(clock_ms, least_ms, known)


def check_target_version(floor: VersionFloor | None, role: TrustedRole, path: str, version: int) -> Refusal | None:
    """Check one version of a target against its floor: None if it may be installed. An equal version is allowed.

    `role`: the one that lists it now; `floor`: of its line, None if there is none or a permit lowers it.
    """
    if not 1 <= version <= MAX_VERSION:
        return Refusal(InstallFailure.INTEGRITY, f"{path}: version {version} is impossible")
    if len(role.keys) < role.threshold:
        return _too_few_keys(path, role)
    if floor and version < floor.version and floor_holds(floor, role):
        return Refusal(InstallFailure.ROLLBACK, f"{path} {version}, seen before: {floor.version}")
    return None


def floor_name_of(path: str) -> str:
    """Return the name of a target's floor: all bundles of a family share one; any other path has its own."""
    parts = path.split("/")
    return TARGET_PREFIX + ("/".join(parts[:2]) if parts[0] == "models" else path)


def is_target_path(path: str) -> bool:
    """Tell whether a target path is one of ours.

    Two to five parts of lower-case ASCII letters, digits, `_`, `-` and single dots inside: it cannot leave a folder.
    """
    return len(path) <= MAX_PATH_CHARS and bool(_PATH.fullmatch(path))


def count_frozen_polls(before: int, failure: InstallFailure | None) -> int:
    """Count the polls in a row that met expired metadata. A poll that reached nobody neither adds nor clears."""
    if failure is None:
        return 0
    return before + 1 if failure is InstallFailure.FREEZE else before
