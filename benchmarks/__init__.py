"""Benchmarks of the product: figures with limits, written into RESULTS.md by `python -m benchmarks`.

`harness`: running, figures, layout gauges. `agent`, `hub`, `intake`, `trust`, `rollout`, `sharding`,
`simulator`, `forge`: one folder per subsystem. `peers`: servers and policy engines that are compared, in
environments of their own.

Nothing imports it but its tests.
"""

import wire  # noqa: F401 - switches off the telemetry of onnxruntime and others before a benchmark imports them
