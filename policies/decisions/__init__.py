"""Decisions about one sample or question, as total functions of policy terms. Pure.

- `escalation`: answer locally or ask the hub
- `routing`: which hubs are allowed, and in which order they are asked
- `egress`: which fields may leave, after which transforms; redaction of text
- `leakage`: whether measured leakage is within the policy's limits
- `budget`: accounts of bytes, cost and privacy
- `permit`: all of them together, for a device and for the hub's recheck

Any failure is a denial. It imports `policies.model` and `wire.protocol`.
"""
