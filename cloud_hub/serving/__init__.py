"""Serving: connects `HubCore` with the engines and the web API, on the event loop.

`executor` runs batches and loads models, `bundles` is the catalogue of model bundles, `versions` lists, loads and
retires model versions, `web_inference` holds waiting web requests, `telemetry` counts times and makes trace spans. May
import `core`, `engine`, `storage`, `system`, `registry` and what these may. Not pure: asyncio.
"""
