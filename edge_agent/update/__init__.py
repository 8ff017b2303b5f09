"""Updates of a device: models, policies and hub keys from the TUF repository, and the installation of assigned models.

`poller` looks for updates and hands them to the agent; `worker` does one look, in a process of its own. `machine`,
`transitions` and `types` are the pure install state machine; `installer` executes its commands, with `actions` on store
and runtime and `install_worker` as the process that downloads and tests; `recovery` stores the machine's row and
resumes it at start. `installed` reads what is already on disk.

Imports `system`, `identity`, `inference`, `runtime`, `uplink`, `models.update` and `models.verification`.
`machine`, `transitions` and `types` are pure: no I/O, no clock, no randomness.
"""
