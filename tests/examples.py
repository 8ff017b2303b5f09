"""How many random cases a property test tries: a quarter of its full count, unless `SKERRY_EXAMPLES` says otherwise.

`make test` tries the quarter, `make heavy` the full count (`SKERRY_EXAMPLES=full`); a number is taken as it is.
"""

import os

SHARE = 4
WANTED = os.environ.get("SKERRY_EXAMPLES", "")


def count_examples(full: int) -> int:
    """Cases that a property test of `full` cases tries in this run, at least one."""
    if WANTED == "full":
        return full
    return int(WANTED) if WANTED else max(1, full // SHARE)
