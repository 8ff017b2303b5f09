"""The runtime of a device: runs the model, executes the core's commands, and dispatches what hubs send.

`answering` answers samples with the serving model, and audits a candidate; `executor` carries out the commands of
`EdgeCore` (store, send, record, wake); `dispatch` hands received messages to whom they concern; `maintenance` watches
the policy's context and keeps the database pruned and open.

Imports `question`, `system`, `inference`, `storage` and `uplink`. Not pure: it runs on one asyncio event loop.
"""
