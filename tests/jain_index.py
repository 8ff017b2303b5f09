"""How evenly amounts are divided, for tests and benchmarks of fairness."""

from collections.abc import Sequence


def compute_jain_index(amounts: Sequence[float]) -> float:
    """Jain's fairness index: 1 = all have the same, 1/n = one has all (Jain, Chiu & Hawe 1984)."""
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else 1.0
