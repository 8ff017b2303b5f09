"""Benchmarks of language models behind the hub, before the shipped double of an engine (`make bench-llm`)."""
