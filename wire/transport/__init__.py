"""Transports that carry frames between a device and a hub.

- `base`: the `Transport` protocol, delivery outcomes and an in-memory broker for tests and simulations
- `mqtt`: MQTT 5 over TCP or TLS; its protocol without I/O is `session` (one connection) and `packets`

Not pure: it opens sockets. It imports `wire.errors` and `wire.protocol` only.
"""
