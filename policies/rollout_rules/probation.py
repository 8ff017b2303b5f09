"""Probation of a newly installed model: health checks a device makes by itself, with no hub in reach. Pure.

Rule: a check compares with what the device saw of the model before, and fails only when it has seen enough of both and
chance does not explain the difference: it is made every second, so a share counts from four standard errors on. NaN
counts against the model.
"""

from math import isfinite, sqrt

import msgspec

from wire.protocol.rollout import Assignment, DeviceSignals

MIN_ERRORS = 3  # fewer may be of a sample, not of the model


class ProbationLimits(msgspec.Struct, frozen=True):
    """Limits of the health checks; any breach rolls the install back.

    `points` are shares: 0.01 is one point in a hundred.
    """

    min_samples: int = 200
    crashes_at_most: int = 2
    answers_a_crash: int = 200  # fewer answers for each crash than this are too few
    error_points: float = 0.01
    escalation_points: float = 0.10
    standard_errors: float = 4.0
    p95_ratio: float = 1.25
    p95_least_us: int = 5000  # slower by less than that is the machine's noise,
    p95_times: float = 5.0  # unless it is so many times as slow
    p95_noise_us: int = 100  # and by more than a cold cache or a timer explains
    rss_ratio: float = 1.2
    rss_least_bytes: int = 32 << 20


DEFAULT_LIMITS = ProbationLimits()


def find_breach(
    seen: DeviceSignals, before: DeviceSignals, declared_bytes: int, gates: ProbationLimits = DEFAULT_LIMITS
) -> str:
    """Find the first breach, in one line; "" if nothing speaks against the model.

    `seen`, `before`: signals of the new and the old model; `declared_bytes`: memory the process may take, 0 = unknown.
    """
    at_once = _check_crashes(seen, gates) or _check_errors(seen, before, gates) or _check_numbers(seen)
    at_once = at_once or _check_memory(seen, declared_bytes, gates)
    if at_once:
        return at_once
    if seen.inferences < gates.min_samples or before.inferences < gates.min_samples:
        return ""
    return _check_escalation(seen, before, gates) or _check_latency(seen, before, gates)


def is_soak_over(seen: DeviceSignals, elapsed_s: float, terms: Assignment) -> bool:
    """Whether the soak is over: watched for long enough, and answered often enough.

    After `max_soak_s` one answer is enough. `elapsed_s` NaN: not over.
    """
    if not elapsed_s >= terms.soak_s:
        return False
    return seen.inferences >= terms.min_inferences or (elapsed_s >= terms.max_soak_s and seen.inferences > 0)


def find_end(seen: DeviceSignals, elapsed_s: float, now_ms: int, terms: Assignment) -> str:
    """Find why a model on trial goes back although nothing speaks against it, in one line; "" while it may stay.

    It never answered in `max_soak_s`, or the hub did not release it before the assignment expired.
    """
    if elapsed_s >= terms.max_soak_s and not seen.inferences and terms.min_inferences:
        return f"no answer in {terms.max_soak_s:g} s: nothing shows how it answers"
    if terms.needs_release and now_ms >= terms.expires_ms:
        return "the hub did not release it in time"
    return ""


def _check_crashes(seen: DeviceSignals, gates: ProbationLimits) -> str:
    """More crashes than allowed, or too many for the number of answers."""
    if seen.crashes > gates.crashes_at_most:
        return f"{seen.crashes} crashes"
    often = seen.crashes and seen.inferences >= gates.min_samples
    if often and seen.inferences <= seen.crashes * gates.answers_a_crash:
        return f"{seen.crashes} crashes in {seen.inferences} answers"
    return ""


def _check_errors(seen: DeviceSignals, before: DeviceSignals, gates: ProbationLimits) -> str:
    """More errors than before, beyond chance; fewer than `MIN_ERRORS` never count."""
    usual, found = _share_of(before.errors, before.inferences), _share_of(seen.errors, seen.inferences)
    counts = (seen.errors + before.errors, seen.inferences, before.inferences)
    if seen.errors >= MIN_ERRORS and not found <= usual + gates.error_points + _chance_difference(*counts, gates):
        return f"errors in {found:.1%} of answers, {usual:.1%} before"
    return ""


def _check_numbers(seen: DeviceSignals) -> str:
    """Sums of confidence that are NaN or infinite."""
    return "" if isfinite(seen.confidence) and isfinite(seen.confidence_sq) else "its confidence is no number"


def _check_memory(seen: DeviceSignals, declared_bytes: int, gates: ProbationLimits) -> str:
    """More memory than declared, by a factor and an amount."""
    most = max(gates.rss_ratio * declared_bytes, declared_bytes + gates.rss_least_bytes)
    if declared_bytes > 0 and seen.rss_bytes > most:
        return f"{seen.rss_bytes >> 20} MiB in memory, {declared_bytes >> 20} were to be expected"
    return ""


def _check_escalation(seen: DeviceSignals, before: DeviceSignals, gates: ProbationLimits) -> str:
    """More samples below the threshold than before, beyond chance."""
    usual, found = _share_of(before.escalated, before.inferences), _share_of(seen.escalated, seen.inferences)
    counts = (seen.escalated + before.escalated, seen.inferences, before.inferences)
    if not found <= usual + gates.escalation_points + _chance_difference(*counts, gates):
        return f"unsure of {found:.1%} of samples, {usual:.1%} before"
    return ""


def _check_latency(seen: DeviceSignals, before: DeviceSignals, gates: ProbationLimits) -> str:
    """Slower than before by a factor and an amount, or many times as slow, whatever the amount."""
    usual = before.p95_us
    most = max(gates.p95_ratio * usual, usual + gates.p95_least_us)
    many_times = seen.p95_us >= gates.p95_times * usual and seen.p95_us > usual + gates.p95_noise_us
    if usual > 0 and (seen.p95_us > most or many_times):
        return f"{seen.p95_us} us for 95 of 100 answers, {before.p95_us} before"
    return ""


def _chance_difference(hits: int, now: int, before: int, gates: ProbationLimits) -> float:
    """Difference of two shares that chance explains: standard errors of their difference, pooled."""
    share = min(1.0, hits / max(1, now + before))
    error = share * (1 - share) * (1 / max(1, now) + (1 / before if before else 0.0))
    return gates.standard_errors * sqrt(error)


def _share_of(part: int, whole: int) -> float:
    """Share of answers and errors together: an error is no answer."""
    return part / whole if whole > 0 else float(part > 0)
