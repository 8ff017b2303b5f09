"""Jobs: work that outlives the request that handed it over, in the same queues as everything else of the hub.

Pure: `states` (which moves there are), `decisions` (what follows from a result), `held` (what this hub has in hand),
`quota` (how many a tenant may have open).
With I/O: `table` (its statements, in the transactions of `storage`), `sealing`, `runner` (the task that runs jobs),
`desk` (what the web API asks).

Imports `database`, `region.vault`, `policies` and `wire`; engines and queues are reached through `JobComputer`.
"""
