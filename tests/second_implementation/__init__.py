"""A second implementation of Skerry's formats, written from `docs/wire-format.md` for tests alone.

It imports the standard library and `cryptography` (Ed25519, X25519, ChaCha20-Poly1305, AES-GCM, scrypt), and nothing of
Skerry. The doubles of hubs and devices speak by it, so that a change of the product's formats is noticed by the other
side. Rule: it is changed only where the page is, never to follow the product.

- `msgpack`: the part of msgpack that the formats use
- `hpke`: RFC 9180, base mode, one suite
- `records`: the messages, as named fields
- `frames`: frames, padding, signatures, bindings, topics
- `ledger`: chain, forms, heads, leaves, Merkle tree, checkpoints
- `artefacts`: packed bundles, TUF metadata, sealed backups
"""
