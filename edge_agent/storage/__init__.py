"""The agent's database agent.db: one file, one writer thread, one module per table or group of tables.

`database` owns the connection and the writer, `schema` the tables' definitions, migrations and the check at start;
`outbox`, `answers`, `accounts`, `ledger`, `ledger_heads` and `tables` hold the SQL of their tables; `journal` makes
answer records and streams them. Functions that take a `sqlite3.Connection` run inside the writer's transaction. May
import `question`, `system`, `policies` and `wire`.
"""
