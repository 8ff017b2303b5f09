"""Live runs: a scenario in real time with real agents, a real broker and a real hub, and the report of a run.

`run`: entry point. `agents`, `database`, `enrollment`: the agents, all in one process. `proxy`, `links`: TCP
proxies that make latency, loss and partitions. `events`: kills. `load`: samples. `monitor`, `results`: what is
measured. `limits`: what one process needs for thousands of agents.

Imports the whole product, `scenario`, `checking`, `simulations.processes` and the report's outcome.
"""
