"""The hub's web API (aiohttp): inference, administration, enrolment, rollouts, metrics, update repository, ledger log.

`app` assembles the application; `routing` describes a route, also for the OpenAPI document; `auth` authenticates
and authorises callers; `interface` declares as protocols what the routes need of the hub. The other modules are groups
of routes: `oip` and `oip_repository` (Open Inference Protocol v2), `admin`, `admin_models`, `devices`, `rollouts`,
`monitoring` (with `aging`: figures of what ends or fails quietly) and `public`.

Uses the hub's loop through `interface` and imports values and services of the folders below, never `runtime` or `cli`.
"""
