"""Benchmarks of a model sharded over several processes, against the same model sharded by hand."""
