"""Life cycle of a device's identity at the hub: enrolment, renewal, eviction, erasure of its subjects, CA rotation.

`enrollment` turns an invite into a device, `renewal` issues later certificates and retires devices, `replies` builds
the signed answers, `rate_limit` slows down guessing, `eviction` ends the broker session of a device whose keys no
longer count, `erasure` handles requests to forget a subject, and `ca_rotation` replaces the hub's CA.

Imports `cloud_hub.registry`, `cloud_hub.security`, `cloud_hub.repository` and types of `cloud_hub.core`.
"""
