"""Offline signing of the update repository: key folders, requests for signatures, their review, roles and permits.

`roles` is the table of roles, lifetimes and paths, `keyring` a folder of sealed keys, `ceremony` makes requests,
`request` encodes them and counts signatures, `review` decides what may be signed or installed, `contents` tells what
a folder or file holds. Runs on a machine without a network; it may import tuf, cryptography and `wire.process`.
`roles` needs the standard library only.
"""
