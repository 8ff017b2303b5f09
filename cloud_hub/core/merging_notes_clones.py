"""Tells one device that restarts from two machines that share its keys. Pure.

Rule: a boot id belongs to one process, an epoch to one database, and a device has one of each at a time. Once another
boot or epoch has followed, it is over for good: if it is heard again, signed later than its last word, two machines
hold the keys. A repeated or delayed message is no new word, and a new signing key (re-enrolment) begins a new history.
"""

from enum import StrEnum

import msgspec

MAX_PAST = 64  # ended boots and epochs remembered, the newest


class Sighting(msgspec.Struct, frozen=True):
    """One believed `Hello`. `key`: id of the signing key that it holds under; `created_ms`: as it says."""

    boot: str
    epoch: int
    key: bytes
    created_ms: int


class Finding(StrEnum):
    FIRST = "first"  # nothing is known of this key
    SAME = "same"  # the process that spoke last
    RESTARTED = "restarted"  # a new process or a new database
    REPEATED = "repeated"  # an old message once more: proves nothing
    CLONE = "clone"


class Past(msgspec.Struct, frozen=True):
    """What was heard under one key: who spoke last, and which boots (with their last word) and epochs have ended."""

    key: bytes
    boot: str
    epoch: int
    last_ms: int
    boots: tuple[tuple[str, int], ...] = ()
    epochs: tuple[int, ...] = ()


def judge(past: Past | None, seen: Sighting) -> tuple[Past, Finding]:
    """The history after this sighting, and what it means."""
    if past is None or past.key != seen.key:
        return Past(seen.key, seen.boot, seen.epoch, seen.created_ms), Finding.FIRST
    ended = dict(past.boots).get(seen.boot)
    last_word_ms = past.last_ms if seen.boot == past.boot else ended
    if last_word_ms is not None and seen.created_ms <= last_word_ms:
        return past, Finding.REPEATED
    if ended is not None or seen.epoch in past.epochs:
        return past, Finding.CLONE
    if (seen.boot, seen.epoch) == (past.boot, past.epoch):
        return msgspec.structs.replace(past, last_ms=max(past.last_ms, seen.created_ms)), Finding.SAME
    return _followed(past, seen), Finding.RESTARTED


def _followed(past: Past, seen: Sighting) -> Past:
    """A new boot or a new epoch (or both): the old one is over."""
    same_boot, same_epoch = seen.boot == past.boot, seen.epoch == past.epoch
    boots = past.boots if same_boot else (*past.boots, (past.boot, past.last_ms))
    epochs = past.epochs if same_epoch else (*past.epochs, past.epoch)
    last_ms = max(past.last_ms, seen.created_ms) if same_boot else seen.created_ms
    return Past(seen.key, seen.boot, seen.epoch, last_ms=last_ms, boots=boots[-MAX_PAST:], epochs=epochs[-MAX_PAST:])
