"""The device's link to its hubs: MQTT connections, sealing, and everything that is sent or received over them.

`connection` keeps one MQTT connection for each line (a broker that the device is enrolled with); `envelope` signs,
seals and verifies frames; `sealing` builds escalations and keeps what belongs to the open ones; `transforms` applies
the policy's transforms (noise, clipping, redaction) to what leaves; `outbound` sends, and writes each frame to the
egress ledger before; `inbound` verifies; `reports` sends rollout reports; `witness` has the ledger's heads witnessed by
hubs. `services` bundles all of them for the runtime above.

Imports `question`, `system`, `identity`, `ledger`, `storage`, `policies`, `models.runtime` and `wire`. Not pure: it
owns sockets and keys.
"""
