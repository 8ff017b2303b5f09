"""Fault fuzzer: random schedules of faults, run in virtual time, judged by their history, and shrunk.

`fuzz`: the search. `schedules`: scenarios drawn from a seed. `shrink`: the smallest scenario that breaks the same rule.

Imports `regions`, `scenario` and the report's outcome; only `fuzz` writes (replay files).
"""
