"""Benchmarks of forged models on real data: accuracy, leakage, quantisation, routing, drift and risk bounds."""
