"""The hub's TUF update repository: what devices download their models, policies and hub keys from.

`files` stores metadata and targets on disk, `parts` the hub parts, `signing_keys` holds the hub's online keys,
`repository` makes, signs and commits new metadata versions, and `publish` says which targets exist (bundles, policies,
hub keys, permits); `halves` is the hub part of a version among them. `fetch` takes a version from another hub's
repository, whose trust and listing are in `source`.

Imports `cloud_hub.system`, `cloud_hub.security`, `models` and `policies`. Not pure: it reads and writes files; `fetch`
and `source` alone use the network, and the time of signatures is an argument.
"""
