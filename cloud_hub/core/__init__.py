"""The pure decision core of the hub: `HubCore` takes events and the time, and returns commands.

No I/O, no clock and no threads: time comes in as `now` (hub time, seconds since 1970). Main modules: `core` (the state
machine), `commands` (its output), `verification` (frames), `intake` (questions), `notes` (signed notes), `admission`,
`policy_check`, `scheduler` and `queues` (batching), `lineup` (model versions), `web_requests`. May import `policies`,
`wire`, the values of `cloud_hub.engine.types`, `registry`, `security.envelopes` and `system.settings`.
"""
