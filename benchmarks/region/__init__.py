"""Benchmarks of a region: PostgreSQL beside SQLite, hubs that share one database, and what a fault costs."""
