"""Rollouts in virtual time: the production rollout machine, quality gate and install machines over many devices.

`versions`: two model versions on the same samples. `device`: one device with its install machine. `fleet`: a rollout
over a fleet that only counts. `region`: the same inside a simulated region, on real samples. `orders`: its assignments
as signed frames.

Imports `cloud_hub.rollout` and its envelopes, `edge_agent.update` and its verifier, `policies.rollout_rules`, `kernel`,
`nodes` and the report's outcome; does no I/O.
"""
