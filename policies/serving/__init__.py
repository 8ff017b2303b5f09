"""Scheduling decisions of a hub that serves inference. Pure: times are passed in.

- `admission`: admission control, rate limits, retry times
- `fair_queue`: start-time fair queueing over priority bands, tenants and devices
- `batching`: batch sizes from a learnt cost model and deadlines
- `advice`, `capacity`: whether a model fits its machine, what is short, and the smallest change that helps
- `computing`: which device and precision a model computes on, and what to fall back to
- `placement`: how many devices a model needs, and in which parallel layout

It imports `wire.protocol` only.
"""
