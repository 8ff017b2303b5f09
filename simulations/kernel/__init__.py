"""Virtual time of the simulator, and the constants that all simulated nodes share.

`kernel`: the event queue (time, then order of scheduling). `world`: device names, sizes, the model that everyone
speaks, per-device random numbers by hash.

Imports `wire.protocol` and `policies.model` alone; does no I/O and reads no clock.
"""
