"""Benchmarks of the simulator: speed, memory, fault schedules, and agreement with live runs."""
