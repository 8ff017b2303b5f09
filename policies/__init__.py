"""Policies as pure functions: what may leave a device, whom it asks, what a hub serves first, which rollout goes on.

- `language`: the TOML policy document and its validation
- `model`: the compiled policy, matching of rules, the terms that apply in a context
- `decisions`: escalation, egress, leakage, budget, routing and the permit that joins them
- `serving`: the hub's admission, fair queue, batching and placement
- `rollout`: waves, the statistical quality gate, probation on a device
- `monitoring`: drift detection, risk bounds, backoff
- `analysis`: check, prove, diff, explain and summarise policies

No clock, no I/O, no randomness: callers pass them in. It imports `wire.protocol` only.
"""
