"""Simulated nodes of one region: devices, hubs, brokers, connections, disks and what is recorded of them.

Devices and hubs run the production `EdgeCore` and `HubCore`; their loops, disks and links are replaced by code that
follows virtual time.
`fleet` and `device`: all devices, and one that is awake. `hub`, `registry`: a hub. `device_disk`, `hub_disk`: in-memory
twins of the databases. `broker`, `connections`: messages and links. `plain_envelopes`: frames without cryptography.
`predictions`: what models answer. `recorder`: counts per bucket. `services`: what nodes are given by their region.

Imports `kernel`, `scenario`, `checking` and the report's outcome; does no I/O.
"""
