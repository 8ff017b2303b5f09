"""The device half of Skerry: answers samples locally and escalates doubtful ones to a hub.

From bottom to top: `question` (pure decisions), `system` (clock, environment, settings, HTTPS), `storage` (agent.db)
and `identity` (keys, enrolment), `uplink` (sealing, MQTT) and `ledger` (reading the egress ledger), `inference` (the
model), `runtime` (executes the core's commands) and `api` (local HTTP), `sources` (cameras, folders, lines), `update`
(downloads and installs), `app` (composition), `cli` (people's commands). Each folder imports only what stands before
it. Start: `python -m edge_agent`.
"""
