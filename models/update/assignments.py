"""Assignment rules of a device: which rollout assignments it accepts, and which target one then means. Pure.

Rule: values in, verdict out. An assignment only chooses among targets that the repository lists, at or above the
device's floor; below it only by a permit that the top-level targets keys have signed, which no hub holds. What is
refused changes nothing, and the model that serves goes on serving.

Whoever steals a hub's keys can therefore send a fleet from one good version to another, and no further (Uptane's split
of director and image repository).
"""

from collections.abc import Mapping

import msgspec

from models.signing.roles import Permit
from models.update.trust import MAX_PATH_CHARS, MAX_VERSION, Refusal, is_target_path
from wire.protocol.rollout import Assignment, InstallFailure

MAX_COUNTER = 2**53
MAX_AHEAD_MS = 86_400_000  # one day; issued further in the future than that, one of the two clocks is wrong
MAX_LIFE_MS = 40 * 86_400_000
MAX_WORD_CHARS = 120
_SHA256_CHARS = 64


class ListedBundle(msgspec.Struct, frozen=True):
    """A bundle as the repository lists it now: its version and the SHA-256 (hex) of the packed file."""

    version: int
    digest: str


class HeldAssignment(msgspec.Struct, frozen=True):
    """Assignment state of a family on a device: the highest counter ever accepted, and that assignment if it has it."""

    device: str
    counter: int = 0
    assignment: Assignment | None = None


class RepositoryView(msgspec.Struct, frozen=True):
    """What one refresh of the repository vouches for, for one family.

    `listed`: bundles by path. `floor`: of the family, while it holds; 0 = none. `running`: version and digest of the
    committed bundle, None while there is none. `permits`: signed ways down to an older version.
    """

    listed: Mapping[str, ListedBundle]
    floor: int = 0
    running: ListedBundle | None = None
    permits: tuple[Permit, ...] = ()


class InstallTarget(msgspec.Struct, frozen=True):
    """Bundle to install. `permit`: the one that ends last of those that name it; None if none does.

    Below the floor there is one.
    """

    path: str
    version: int
    digest: str
    permit: Permit | None = None


def check_assignment(assignment: Assignment, held: HeldAssignment, now_ms: int) -> Refusal | None:
    """Check an assignment on arrival: None if it may be acted on, or is the very one that is held already.

    INTEGRITY if it is for another device or impossible, REPLAY if its counter is not new, FREEZE if it is out of time.
    `now_ms`: milliseconds since 1970.
    """
    if assignment.device != held.device:
        return Refusal(InstallFailure.INTEGRITY, "assigned to another device")
    if assignment == held.assignment:
        return None
    if not _is_plausible(assignment):
        return Refusal(InstallFailure.INTEGRITY, "the assignment holds an impossible value")
    if assignment.counter <= held.counter:
        return Refusal(InstallFailure.REPLAY, f"counter {assignment.counter}, accepted before: {held.counter}")
    return _check_time(assignment, now_ms)


def resolve_assignment(assignment: Assignment, facts: RepositoryView, now_ms: int) -> InstallTarget | Refusal:
    """Resolve an assignment after a refresh: the bundle to install, or why it is refused.

    Call `check_assignment` first; this does not ask again whom it is for. INTEGRITY if the repository does not list
    exactly that version and digest, ROLLBACK below the floor without a permit, FREEZE if it is out of time.
    """
    late = _check_time(assignment, now_ms)
    if late:
        return late
    found = facts.listed.get(assignment.path)
    if found is None:
        return Refusal(InstallFailure.INTEGRITY, f"{assignment.path}: no trusted role lists it")
    if found != ListedBundle(assignment.version, assignment.digest):
        return Refusal(InstallFailure.INTEGRITY, f"{assignment.path}: another version or hash than is listed")
    least = max(facts.floor, facts.running.version if facts.running else 0)
    allowing = (each for each in facts.permits if permit_allows(each, assignment, least, now_ms))
    permit = max(allowing, key=lambda each: each.expires_ms, default=None)
    if found.version < least and found != facts.running and permit is None:
        return Refusal(
            InstallFailure.ROLLBACK,
            f"{assignment.path}: below version {least} seen here before, and no permit allows it",
        )
    return InstallTarget(assignment.path, found.version, found.digest, permit)


def permit_allows(permit: Permit, assignment: Assignment, least: int, now_ms: int) -> bool:
    """Tell whether a permit lets the assignment's device, whose version or floor is `least`, go to what is assigned."""
    if not permit.covers(assignment.device):
        return False
    named = (permit.family, permit.to_version) == (assignment.family, assignment.version)
    return named and least < permit.from_below and now_ms < permit.expires_ms


def _is_plausible(assignment: Assignment) -> bool:
    """Tell whether every counter, time and text is within bounds; anything else was made by no hub of ours."""
    a = assignment
    words = (a.rollout, a.family)
    named = all(word and len(word) <= MAX_WORD_CHARS for word in words) and len(a.path) <= MAX_PATH_CHARS
    aimed = is_target_path(a.path) and a.path.startswith(f"models/{a.family}/") and len(a.digest) == _SHA256_CHARS
    counted = 1 <= a.counter <= MAX_COUNTER and (a.withdraw or a.version >= 1) and 0 <= a.version <= MAX_VERSION
    timed = 0 <= a.issued_ms < a.expires_ms <= a.issued_ms + MAX_LIFE_MS
    return named and (aimed or a.withdraw) and counted and timed and _gates_fit(a)


def _gates_fit(a: Assignment) -> bool:
    """Tell whether the quality gates are within bounds. NaN fails every comparison, so it fails here."""
    spans = (a.soak_s, a.max_soak_s, a.strict_s, a.report_s)
    return 0 <= a.audit_share <= 1 and 0 <= a.min_inferences <= MAX_COUNTER and all(0 <= s <= 1e8 for s in spans)


def _check_time(assignment: Assignment, now_ms: int) -> Refusal | None:
    """Refuse an assignment that has ended, or that was issued more than `MAX_AHEAD_MS` in the future."""
    if now_ms >= assignment.expires_ms:
        return Refusal(InstallFailure.FREEZE, f"the assignment ended {(now_ms - assignment.expires_ms) // 1000} s ago")
    if assignment.issued_ms > now_ms + MAX_AHEAD_MS:
        return Refusal(
            InstallFailure.FREEZE, "the assignment was issued more than a day in the future: is the clock right?"
        )
    return None
