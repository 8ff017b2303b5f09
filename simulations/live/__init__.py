"""Live runs: a scenario in real time with real agents, a real broker and a real hub, and the report of a run.

`run`: entry point. `fleet`: the agents with their load, in processes of their own; `hosts`: these processes;
`samples`: what they are given.
`proxy`, `links`: TCP proxies that make latency, loss and partitions. `events`: kills of broker and hub. `monitor`,
`results`: what is measured. `limits`: what one process needs for thousands of agents.

Imports the whole product, `scenario`, `checking`, `simulations.processes` and the report's outcome.
"""
