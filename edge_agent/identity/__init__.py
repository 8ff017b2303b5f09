"""Identity of a device: keys, enrolment at a hub, certificate renewal, additional hubs.

`identity` reads and writes the identity folder (keys, certificate, pinned CAs, hub keys), `enrollment` makes a device
out of an invite, `certificates` verifies the hub's signed replies, `renewal` renews the certificate (in the process
`renewal_worker`, which ends with it), `hubs` loads additional hubs and the hub keys of the update repository. May
import `system`, `policies` and `wire`. Not pure: files, TLS, subprocesses.
"""
