"""The demo (`skerry demo`): a small fleet of real processes that shows escalation, outage, correction and policy.

`acts`: the five acts. `client`: HTTP client of the agents. `results`: what it saw. `screen`: terminal output. `casts`,
`leakage`, `policy_tour`, `policy_tour_screen`: the variant under a shipped policy (`--template`).

Imports `simulations.processes`, `checking` and the product.
"""
