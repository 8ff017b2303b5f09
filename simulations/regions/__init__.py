"""Regions of a simulated fleet and the run of a scenario over all of them, in one process or several.

`run`: entry point. `region`: one region with all its nodes. `borders`: messages between regions. `faults`: the
scenario's events. `coordinator`, `workers`: regions side by side, one process per group.

Imports `nodes`, `rollout`, `checking`, `scenario`, `kernel` and the report's outcome.
"""
