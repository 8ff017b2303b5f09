"""Prints how time and memory of every reader and regular expression grow: `python -m tests.growth [--quick] [NAME]`."""

import argparse
import re
import sys

from tests.growth.cases import list_cases
from tests.growth.regexes import EXEMPT, MOST_RATIO, find_regexes, measure_slowness
from tests.growth.sweep import format_table, measure_cases


def main() -> int:
    """Measure what is asked for, and end with 1 if something is too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="a regular expression for the names of readers")
    parser.add_argument("--quick", action="store_true", help="some shapes of each reader, at 4 KiB")
    options = parser.parse_args()
    cases = [case for case in list_cases() if re.search(options.name, case.name)]
    if not cases:
        parser.error(f"no reader's name has {options.name}")
    found = []
    for number, each in enumerate(measure_cases(cases, full=not options.quick), start=1):
        found.append(each)
        print(f"\r{number} of {len(cases)} cases", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print("\n".join(format_table(found)))
    faults = [line for each in found for line in each.faults]
    if not options.name:
        regexes = [regex for regex in find_regexes() if regex.key not in EXEMPT]
        slow = [measure_slowness(regex, full=not options.quick) for regex in regexes]
        worst = max(slow, key=lambda each: (each.ratio, each.ns_a_character))
        print(f"regular expressions {len(slow)}, largest ratio {worst.ratio:.2f}: {worst.regex}")
        faults += [f"{each.regex}: {each.ratio:.1f} times the time" for each in slow if each.ratio > MOST_RATIO]
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
