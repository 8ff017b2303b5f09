"""What the agent knows of its machine: clock, environment, settings and HTTPS to the hub.

`clock` estimates hub time on a device whose wall clock may be wrong, `environment` reads battery, link cost and local
time for policies, `settings` holds the limits of a running agent, `policy_layers` reads the policy documents and
composes them, `policy_compiler` has them compiled by a process of its own (`policy_worker`), `http` posts to the hub
under pinned CAs. May import `question`, `policies` and `wire`. Not pure.
"""
