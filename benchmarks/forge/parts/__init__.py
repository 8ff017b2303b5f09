"""Benchmarks of single parts of the forge: routing, risk, precisions, drift, decoding and leakage, a command each."""
