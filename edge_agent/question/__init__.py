"""One question of the device, from the sample to its outcome: decided, permitted, sealed, verified.

`decide` holds the state machine `EdgeCore` with sending and retrying, `questions` the open questions and the
connections with every change of their states, `permissions` what the policy allows and what was spent, `commands` the
input and output values, `limits` settings of the outbox, `records` the answers shown to callers. These are pure: no
I/O, no clock, no randomness. Events and the time go in, commands come out, so that tests and the simulator run them
under a virtual clock; they import `policies` and `wire.protocol` only. `seal` is not pure: it transforms, seals and
signs what leaves, and verifies what comes; it may import `system`, `storage`, `identity` and `models` too.
"""
