"""Benchmarks of jobs and of capacity: the queue beside another one, online work beside a backlog, kills, a notice."""
