"""The device's link to its hubs: MQTT connections, and everything that is sent over them.

`connection` keeps one MQTT connection for each line (a broker that the device is enrolled with); `outbound` sends, and
writes each frame to the egress ledger before; `reports` sends rollout reports; `witness` has the ledger's heads
witnessed by hubs. `services` bundles all of them for the runtime above.

Imports `question`, `system`, `identity`, `ledger`, `storage`, `policies`, `models.runtime` and `wire`. Not pure: it
owns sockets and keys.
"""
