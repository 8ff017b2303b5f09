"""The local HTTP API of the agent.

`app` assembles the aiohttp application; `oip` serves the Open Inference Protocol v2 (KServe) under `/v2`; `answers` the
records, events and feedback of answers under `/v1`; `health` liveness, readiness and status; `metrics` what Prometheus
scrapes; `description` and `openapi` the description of all routes. `service` is the interface that they and the sources
of samples use of the agent.

Imports `core.records`, `inference.requests`, `models` and `wire.http`; never `app`: the agent is passed in.
"""
