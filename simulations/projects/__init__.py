"""Projects (`skerry new`, `skerry up`): a folder with a model, a policy and a program, run as a whole on this machine.

`project_file`: what `skerry.toml` says. `stage`: hub and devices of a project as processes, its program beside them.
`templates`: what `skerry new` writes, a folder for each kind.

Imports `simulations.processes` and the product.
"""
