"""Benchmarks of the device's agent: local answers, escalations, memory, ledger, policy decisions, first answer."""
