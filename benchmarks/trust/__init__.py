"""Benchmarks of enrolment and of the update repository's client."""
