"""Exponential backoff with full jitter, so that a fleet that failed together does not retry together. Pure."""

_MOST_DOUBLINGS = 32  # 2**32 seconds is above any cap; more would only overflow


def compute_delay(attempt: int, jitter: float, base_s: float = 1.0, cap_s: float = 60.0) -> float:
    """Seconds to wait before the next attempt: `jitter` (0..1, drawn uniformly) of base_s * 2**attempt, at most cap_s.

    `attempt` counts from 0. Raises ValueError for a negative attempt or a jitter out of range.
    "Full jitter" of M. Brooker, Exponential Backoff And Jitter (AWS Architecture Blog, 2015).
    """
    if attempt < 0 or not 0.0 <= jitter <= 1.0:
        raise ValueError(f"attempt {attempt} not >= 0 or jitter {jitter} not in 0..1")
    return float(jitter * min(cap_s, base_s * 2 ** min(attempt, _MOST_DOUBLINGS)))


TAKEN_OVER_S = 60.0


def compute_taken_over_pause(dice: float) -> float:
    """Seconds before a client whose session another one has taken over connects again: one minute to two.

    Two that come back at once would end each other's connection many times a second.
    """
    return TAKEN_OVER_S * (1.0 + dice)
