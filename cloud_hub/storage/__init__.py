"""Storage of the hub: `hub.db` with questions and verdicts, `ledger.db` with the transparency log, `versions.db`.

`database` holds tables and migrations, `store` the transactions, `writer` the one thread that runs them, `gateway`
turns the core's commands into jobs for it, `retention` deletes and aggregates, `ledger_log` is the Merkle log,
`ledger_service` its asyncio front, `versions` which device uses which model. May import `core`, `security`, `registry`
and `wire`. Not pure: SQLite, threads.
"""
