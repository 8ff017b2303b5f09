"""How much may leave in a day. A charge is decided before anything is sent and is never given back."""

import msgspec

from policies.policy import Policy
from policies.reasons import FAULTS, Denied, Why
from wire.codec import MAX_FRAME_BYTES


class Spend(msgspec.Struct, frozen=True, gc=False):
    """Bytes charged on `day` (whole days since 1970, UTC)."""

    day: int
    bytes: int


def charge(policy: Policy, spend: Spend, size_bytes: int, day: int) -> Spend | Denied:
    """The new total, or why not. A new day starts at zero; a clock that went back refunds nothing.

    `size_bytes` = 0 stands for a question that was paid for before and is judged again.
    """
    try:
        return _charge(policy.bytes_per_day, spend, size_bytes, day)
    except FAULTS as error:
        return Denied(Why.DENIED_POLICY_ERROR, f"budget: {type(error).__name__}")


def _charge(limit_bytes: int, spend: Spend, size_bytes: int, day: int) -> Spend | Denied:
    if type(limit_bytes) is not int:
        raise TypeError  # infinity is no limit
    current = Spend(day, 0) if day > spend.day else spend
    if size_bytes < 0 or current.bytes < 0:
        return Denied(Why.DENIED_POLICY_ERROR, "budget: a negative count")
    if size_bytes > MAX_FRAME_BYTES:
        return Denied(Why.DENIED_TOO_BIG, f"{size_bytes} bytes, at most {MAX_FRAME_BYTES} in one message")
    total = current.bytes + size_bytes
    if size_bytes == 0 or total <= limit_bytes:
        return Spend(current.day, total)
    return Denied(Why.DENIED_BUDGET, f"{total} bytes on this day, budget.bytes_per_day is {limit_bytes}")
