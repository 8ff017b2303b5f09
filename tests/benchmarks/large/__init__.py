"""Tests of the benchmarks of large models."""
