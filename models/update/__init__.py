"""Updates on the device: a TUF client with version floors, resumable downloads, and the store of bundle slots.

`client` refreshes and judges the repository (`tuf_view` reads python-tuf, `trust` holds the pure rules,
`floors` the SQLite file), `downloader`, `http` and `partial_download` fetch, `poll` is one polling run, `slots` the
store on disk, `assignments` the pure rules for a rollout's assignment. `trust` and `assignments` are pure.
It may import `models.bundle`, `models.signing.roles` and `wire`.
"""
