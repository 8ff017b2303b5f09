"""Command line of the simulator: `skerry sim` (run, list, show, compare, live, fuzz) and `skerry demo`.

`sim`: the commands on scenarios. `live` and `fuzz` parse their own options, so that listing scenarios need not import
them. `terminal`: progress and summary of a run.

Imports everything else of `simulations`.
"""
