"""Benchmarks of the hub's web API and engines: peers, sealed MQTT, binary tensors, overload, model swap."""
