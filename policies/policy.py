"""A policy as the device uses it: compiled once from a document, frozen, nothing left to parse or to guess."""

from enum import StrEnum

import msgspec

from wire.messages import Level

HARD_CEILING = Level.P3  # P4 (raw, special category) never leaves, whatever a document says


class PolicyError(Exception):
    """A document that cannot be used: one line that names the key and says what to do."""


class Mode(StrEnum):
    """What a device does with an answer. From `hub_first` to `disabled` each asks less than the one before."""

    HUB_FIRST = "hub_first"  # ask whatever the confidence, wait up to budget_s
    WAIT = "wait"  # when unsure ask and wait up to budget_s, then answer locally
    ANSWER_NOW = "answer_now"  # answer locally at once; when unsure ask, and correct later
    LOCAL_ONLY = "local_only"  # never ask
    DISABLED = "disabled"  # no inference at all


ASKING = (Mode.HUB_FIRST, Mode.WAIT, Mode.ANSWER_NOW)


class TransformKind(StrEnum):
    CLIP = "clip"
    QUANTISE = "quantise"


class TransformSpec(msgspec.Struct, frozen=True, gc=False):
    """One step done to a field's values before they leave. Clip uses `low` and `high`; quantise rounds to `step`."""

    kind: TransformKind
    low: float = 0.0
    high: float = 0.0
    step: float = 0.0


class FieldRule(msgspec.Struct, frozen=True):
    """A field that may leave: at most with label `level`, after `transforms` in this order."""

    name: str
    level: Level
    transforms: tuple[TransformSpec, ...]


class Privacy(msgspec.Struct, frozen=True, gc=False):
    """Limits on what the codes may give away, each for the upper end of a 95 % interval; None = no limit.

    `metric`: which figure of reconstruction must be there and is limited; "" = each that runs from 0 to 1.
    """

    max_leakage: float | None = None
    metric: str = ""
    max_attribute_advantage: float | None = None


class Policy(msgspec.Struct, frozen=True):
    """The compiled document. `expires_day` = last day (days since 1970, UTC) on which anything may leave."""

    hash: str
    name: str
    version: int
    mode: Mode
    threshold: float
    audit_share: float
    budget_s: float
    max_open: int
    ceiling: Level
    fields: dict[str, FieldRule]
    data_classes: dict[str, bool]
    hubs: tuple[str, ...]
    regions: tuple[str, ...]
    bytes_per_day: int
    expires: str | None = None
    expires_day: int | None = None
    privacy: Privacy = Privacy()


def may_replace(current: Policy, candidate: Policy) -> bool:
    """Never back to an older version, and never to another text under the same version."""
    if candidate.name != current.name:
        return False
    return candidate.version > current.version or candidate.hash == current.hash


def day_of(iso: str) -> int:
    """Days since 1970-01-01 of a YYYY-MM-DD date (proleptic Gregorian; H. Hinnant, `days_from_civil`)."""
    year, month, day = map(int, iso.split("-"))
    year -= month <= 2  # the year begins in March, so that the leap day is its last
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
