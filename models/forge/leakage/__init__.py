"""Privacy leakage: attacks on the codes that leave the device (inversion, attribute inference, membership inference).

`inversion` rebuilds samples from codes with the networks in `decoders`; `attribute_probes` guesses sensitive
columns; `membership` tells training samples from others of the same distribution; `metrics` scores with bootstrap
intervals; `effort` bounds attacks, counts what they cost and keeps their state on disk; `measure` runs all of them and
returns a manifest's rows, and `summary` says in words what they mean. `forged_codes` attacks a new bundle, `remeasure`
a finished one; `measure` also ranks the cuts of a model by a quick attack on untrained codes.

May import `forge.data`, `forge.cache`, `forge.spec`, `forge.partition`, `forge.evaluation`, `models.runtime` and
`models.bundle`. Deterministic for
equal inputs on one machine; trains small torch networks on one thread.
"""
