"""Sharded inference: one model over several processes, by tensor parallelism, pipeline parallelism and replicas.

`engine` supervises and rebuilds the rank groups, `group` is one generation of ranks, `launcher` starts them (locally
by the `fork_server`), `protocol` is the socket protocol between supervisor and rank, `rank` the main loop of a rank,
`stage` its part of the model. May import `cloud_hub.engine`, `models` and `wire`. Not pure: processes, sockets,
torch.distributed.
"""
