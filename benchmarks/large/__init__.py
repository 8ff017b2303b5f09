"""Benchmarks of large models on the hub: bytes of devices, starts, ranks, encoders, lost ranks, graphics cards."""
