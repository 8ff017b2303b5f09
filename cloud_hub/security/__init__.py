"""Keys and certificates of the hub: its CA, its HPKE and signing keys, and the sealing and signing of frames.

`authority` is the CA, `authorities` the CA during a rotation, `hub_keys` the key files, `signatures` Ed25519 by
libsodium, `envelopes` the cryptographic seam of `HubCore` with a double for simulations. May import
`registry.device_states`, `system` and `wire`. Not pure, except that `Envelopes` itself has no I/O.
"""
