"""Scenario language of the simulator: the frozen values of a scenario, its TOML grammar, and its load.

`types`: the values. `schema`: the closed TOML grammar (pydantic). `writer`: a scenario as TOML. `traces`: load traces
from CSV or Parquet. `arrivals`: sample arrival processes. `conditions`: latency, loss, disk failures and
clocks.

Imports `policies.language` for its grammar's words; does no I/O but `traces`. Scenario files are read by
`simulations.scenario_files`.
"""
