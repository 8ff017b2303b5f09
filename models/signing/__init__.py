"""Offline signing of the update repository: key folders, requests for signatures, their review, roles and permits.

`roles` is the table of roles, lifetimes and paths, `keyring` a folder of sealed keys, `ceremony` makes requests,
`contents` tells what a file holds, `request` encodes and counts signatures, `review` decides what may be signed or installed. Runs on a machine
without a network; it may import tuf, cryptography and `wire.process`. `roles` needs the standard library only.
"""
