"""Pure decision core of the edge agent: what to do with each sample, question and hub reply.

`decide` holds the state machine `EdgeCore` with sending and retrying, `questions` the open questions and the
connections with every change of their states, `permissions` what the policy allows and what was spent, `commands` the
input and output values, `limits` settings of the outbox, `records` the answers shown to callers. Pure: no I/O, no
clock, no randomness. Events and the time go in, commands come out, so that tests and the simulator run it under a
virtual clock. May import `policies` and `wire.protocol` only.
"""
