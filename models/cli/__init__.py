"""Commands of models and keys: `skerry models ...` and `skerry keys ...`, built with typer and rich.

`models` holds inspect, verify, compare and demo-bundle, `forge` and `calibrate` a command each, `keys` the offline
signing commands, `compare` the figures of two bundles, `flags` turns a dataclass into options. Heavy imports (torch)
happen inside the commands. It may import every other sub-package of `models`, and `wire.process`.
"""
