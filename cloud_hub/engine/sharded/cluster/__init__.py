"""Rank groups over the machines of a Ray cluster (extra `ray`).

`launcher` is the hub's side, `driver` a process of its own that places hosts by Ray and watches them, `host` forks the
ranks of one stage on a node, `messages` is what hub and driver say to each other. May import
`cloud_hub.engine.sharded`. Rule: only `driver` imports Ray.
"""
