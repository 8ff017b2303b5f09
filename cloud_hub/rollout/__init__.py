"""Staged rollout of model versions to the hub's devices: waves, control cohorts, a quality gate, abort and rollback.

Pure: `core` (the state machine of one rollout), `progress` (its head, history and approvals), `fleet` (its
devices), `dispatch` (who is assigned what and when), `types` and `planning`. With I/O: `controller` (the task that
obeys all cores), `store` (rollouts.db), `catalog` (what the update repository lists) and `view` (what the API shows).

Imports `policies.rollout_rules`, `wire.protocol` and, outside the pure modules, `cloud_hub.repository`.
"""
