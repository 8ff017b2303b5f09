"""Benchmarks of rollouts in virtual time on real models' answers, and of a crashing model on a real agent."""
