"""The agent as an application: the object that joins all parts, its process, its configuration and its status.

`agent` assembles core, runtime, uplink and storage, and keeps their tasks alive; `process` loads what it needs and runs
it with the API, updates and signals; `config` is the TOML configuration; `status` the status report and trace spans;
`draining` runs an agent for its open questions alone.

Imports every other folder of the package but `cli`. Nothing but `cli` and the package's `__main__` imports it.
"""
