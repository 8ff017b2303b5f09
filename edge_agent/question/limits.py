"""Limits of the outbox and energy of the link, apart from the commands that obey them: settings need no arrays."""

import math

import msgspec

DAY_S = 86_400.0


class OutboxLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits of the outbox and its retry timing.

    Loss policy: a full outbox refuses new questions (`outbox_full`, answered locally) and never drops stored ones.
    Audit questions may fill at most half of each limit, so that a doubtful sample always finds room. Suffixes: `_s`
    seconds, `_bytes` bytes.
    """

    max_rows: int = 10_000
    max_bytes: int = 64 * 1024 * 1024
    max_age_s: float = 7 * DAY_S  # the hub accepts nothing older
    window: int = 32  # sent and not yet receipted; the broker's queue is sized to it
    resend_base_s: float = 2.0
    resend_cap_s: float = 30.0
    ask_interval_s: float = 60.0
    quiet_cap_s: float = 3600.0  # the longest pause that a hub may ask for


class LinkEnergy(msgspec.Struct, frozen=True, gc=False):
    """Energy that the device spends on sending one message: `message_j` joules, and `byte_uj` microjoules a byte."""

    message_j: float = 0.0
    byte_uj: float = 0.0

    def count_mj(self, size_bytes: int) -> int:
        """Energy of a message of this size in whole millijoules, rounded up."""
        return math.ceil(1e3 * self.message_j + 1e-3 * self.byte_uj * size_bytes)
