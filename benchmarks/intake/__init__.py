"""Benchmark of the hub's intake over MQTT: questions verified, stored and receipted per second."""
