"""Who and what is allowed: devices and invites, API keys of tenants, standing orders, and the audit log.

`registry` owns `devices.db` (tables in `schema`), `device_states` is the state machine of a device and the protocol
that the core sees, `access` owns the API keys, `orders` deny notices and policy floors, `audit` the audit log. May
import `wire` and `policies`. Not pure, except `device_states`.
"""
