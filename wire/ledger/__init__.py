"""Formats of the egress ledger: a hash chain per device and the hub's transparency log over all of them. Pure.

- `chain`: ledger entries, their hash chain, signed ledger heads
- `merkle`: the Merkle tree of RFC 9162 with inclusion and consistency proofs
- `checkpoint`: signed checkpoints of the hub's log in the C2SP format

Devices, hubs and auditors verify with the same code. It imports `wire.errors` only.
"""
