"""Harness of the benchmarks: running one, its figures, the machine, the live rig, and gauges of the code's layout."""
