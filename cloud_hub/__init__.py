"""The hub: receives sealed questions from devices over MQTT, runs the rest of the model, answers with signed verdicts.

`core` decides (pure), `engine` runs models, `serving` connects both with the web API, `storage` is hub.db and the
ledger log, `security` the CA, keys and envelopes, `registry` devices, API keys and orders, `system` clock and settings.
Above them stand `repository` (TUF), `enrollment`, `rollout`, `runtime` (composition), `api` and `cli`. May import
`wire`, `policies` and `models`, never `edge_agent` or `simulations`.
"""
