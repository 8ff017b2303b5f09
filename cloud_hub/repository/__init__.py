"""The hub's TUF update repository: what devices download their models, policies and hub keys from.

`files` stores metadata and targets on disk, `signing_keys` holds the hub's online keys, `repository` makes, signs and
commits new metadata versions, and `publish` says which targets exist (bundles, policies, hub keys, permits).

Imports `cloud_hub.system`, `cloud_hub.security`, `models` and `policies`. Not pure: it reads and writes files, but
knows no network, and the time of signatures is an argument.
"""
