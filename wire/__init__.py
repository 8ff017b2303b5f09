"""What the edge device and the hub share: wire formats, transports and the helpers of every Skerry process.

- `protocol`: messages, topics, the binary codec and the encryption of frames (pure)
- `ledger`: hash chain, Merkle tree and signed checkpoints of the egress ledger (pure)
- `transport`: the `Transport` interface, MQTT 5 and an in-memory broker for tests
- `http`: Open Inference Protocol v2, request guards, a small blocking client
- `toml`: TOML texts of bounded cost (pure)
- `process`: configuration, exit codes, files, logging, tracing, service manager
- `telemetry`: switches off what packages of others report by themselves

It imports nothing of the other Skerry packages. Importing it sets the switches of `telemetry`.
"""

from wire.telemetry import disable_telemetry

disable_telemetry()
