"""Partition: traces a user's model, finds the points where it can be split, measures their cost and splits it there.

`trace` exports the model to a graph; `cuts` finds split points; `macs` counts arithmetic; `cost` measures head, tail
and bytes of every cut; `code_levels` is the training-free codec used for that; `select` ranks cuts against the
limits; `split` makes head and tail; `layout` describes how a cut's tensors lie.

May import `forge.data`, `forge.spec` and `models.graph`. Works on torch graphs; only `cost` measures time.
"""
