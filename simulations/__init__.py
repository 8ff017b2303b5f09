"""Discrete-event simulator of a whole fleet, its fault fuzzer, live runs of real processes, and the demo.

Devices and hubs run their production cores over virtual time; only the loops around them are replaced.
`kernel`: virtual time. `scenario`: the TOML scenario language. `nodes`: simulated devices, hubs and brokers. `regions`:
regions and a run of them. `rollout`: rollouts in virtual time. `checking`: history checker and egress auditor.
`fuzzing`: random fault schedules. `report`: outcomes, JSON and HTML. `live`: real agents, broker and hub under a
scenario. `demo`: `skerry demo`. `cli`: commands.

It may import every product package; no product package imports it.
"""
