"""The local HTTP API of the agent, and its other sources of samples.

`app` assembles the aiohttp application; `oip` serves the Open Inference Protocol v2 (KServe) under `/v2`; `answers` the
records, events and feedback of answers under `/v1`; `health` liveness, readiness, status and Prometheus metrics;
`openapi` the description of all routes. `sources` answers samples from a watched folder and from JSON lines, with
`image_files` to read `.npy` and `.png`. `service` is the interface that all of them use of the agent.

Imports `core.records`, `inference.requests`, `models` and `wire.http`; never `app`: the agent is passed in.
"""
