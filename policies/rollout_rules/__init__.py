"""Decisions of a model rollout. Pure: reports and times are passed in.

- `plan`: rollout parameters, waves, stop rules, selectors of devices
- `wave_results`: counts and failures of a wave: when it pauses, aborts or is left
- `gate`, `gate_parameters`: the statistical quality gate between two waves and its parameters
- `cohorts`, `signals`: audit counts and behaviour of canary and control devices
- `confidence`: anytime-valid confidence sequences by betting
- `probation`: what a device judges by itself after an install

It imports `wire.protocol.rollout` only.
"""
