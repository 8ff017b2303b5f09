"""The wire protocol between device and hub, as pure functions and values: no clock, no network, no files.

- `messages`, `rollout`: every message as a frozen msgspec struct
- `codec`: frame layout, msgpack encoding, padding to size classes
- `sealing`: HPKE encryption and Ed25519 signatures of frames
- `topics`: MQTT topic names, device ids, broker access rules

Every byte is described in docs/wire-format.md and frozen in tests/vectors. It imports `wire.errors` and
third-party libraries only.
"""
