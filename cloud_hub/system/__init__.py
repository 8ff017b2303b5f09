"""Process-level facts of the hub: clock, settings, state folder, and a client of a running hub's admin API.

`clock` (monotonic hub time, event loop lag), `settings` (one frozen value), `state_folder` (paths and permissions),
`client`, `config_base` (tables of a configuration as pydantic models). May import `wire` and `policies.model` only;
everything else in the hub may import this folder. Not pure.
"""
